package consensus

import (
	"encoding/binary"
	"fmt"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// EntryVersion is the first byte of a log entry that carries commands with their origin. Entries of version 1 carry one command
// and no origin; logs of clusters that have only ever had one server hold them.
const EntryVersion = 2

// maxEntryCommands and maxEntryBytes bound what one log entry carries; the last command may exceed maxEntryBytes.
const (
	maxEntryCommands = 512
	maxEntryBytes    = 1 << 20
)

// Entry is the content of one log entry: commands of one origin, which is one run of one server, each with the origin's sequence
// number.
//
//	version 2, origin (8 bytes), term, number of commands
//	each: sequence number, length, command
//
// Term is the term of the leader that the entry was made for. In the log of another term the entry has no effect. So once the
// origin has applied anything of a later term, it knows that commands without an effect will have none.
type Entry struct {
	Origin, Term uint64
	Items        []Item
}

// Item is one command of an Entry.
type Item struct {
	Seq     uint64
	Command []byte
}

// Encode returns the bytes of e.
func (e *Entry) Encode() []byte {
	size := 1 + 8 + 2*binary.MaxVarintLen64
	for i := range e.Items {
		size += 2*binary.MaxVarintLen64 + len(e.Items[i].Command)
	}
	out := append(make([]byte, 0, size), EntryVersion)
	out = binary.BigEndian.AppendUint64(out, e.Origin)
	out = binary.AppendUvarint(out, e.Term)
	out = binary.AppendUvarint(out, uint64(len(e.Items)))
	for i := range e.Items {
		out = binary.AppendUvarint(out, e.Items[i].Seq)
		out = mvcc.AppendBytes(out, e.Items[i].Command)
	}
	return out
}

// DecodeEntry reads an entry of version 2; the commands are sub-slices of data.
func DecodeEntry(data []byte) (*Entry, error) {
	p := mvcc.Parser{Rest: data}
	if v := p.Byte(); p.Err == nil && v != EntryVersion {
		return nil, fmt.Errorf("%w: log entry has format %d, this program knows up to %d", errdefs.ErrNewerVersion, v, EntryVersion)
	}
	e := new(Entry)
	if len(p.Rest) < 8 {
		return nil, mvcc.ErrShort
	}
	e.Origin, p.Rest = binary.BigEndian.Uint64(p.Rest), p.Rest[8:]
	e.Term = p.Uvarint()
	n := p.Count(minItemBytes)
	e.Items = make([]Item, n)
	for i := range e.Items {
		e.Items[i] = Item{Seq: p.Uvarint(), Command: p.Bytes()}
	}
	if p.Err == nil && len(p.Rest) > 0 {
		p.Fail(fmt.Errorf("%w: %d bytes after the batch", errdefs.ErrCorrupt, len(p.Rest)))
	}
	if p.Err != nil {
		return nil, p.Err
	}
	return e, nil
}

// minItemBytes is the least an item takes: sequence number, length, and the command's version and kind.
const minItemBytes = 4

// checkKnown returns ErrNewerVersion for commands that this program cannot read. It looks at no more than their version and kind.
func (e *Entry) checkKnown() error {
	for i := range e.Items {
		c := e.Items[i].Command
		if len(c) < 2 {
			return mvcc.ErrShort
		}
		if c[0] != mvcc.CommandVersion || mvcc.Kind(c[1]) > mvcc.LastKind {
			return fmt.Errorf("%w: a command has format %d, kind %d", errdefs.ErrNewerVersion, c[0], c[1])
		}
	}
	return nil
}

// CheckEntry reads a log entry of any version to its last byte.
func CheckEntry(data []byte) error {
	if len(data) == 0 || data[0] != EntryVersion {
		_, err := mvcc.DecodeCommand(data)
		return err
	}
	e, err := DecodeEntry(data)
	if err != nil {
		return err
	}
	for i := range e.Items {
		if _, err := mvcc.DecodeCommand(e.Items[i].Command); err != nil {
			return fmt.Errorf("command %d: %w", e.Items[i].Seq, err)
		}
	}
	return nil
}
