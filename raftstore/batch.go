package raftstore

import (
	"encoding/binary"
	"fmt"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// batchVersion marks a log entry that carries a batch. Entries of version 1
// carry one command and no origin; logs of one-server clusters hold them.
const batchVersion = 2

// Limits of a batch: what one log entry carries at most, give or take one
// command.
const (
	maxBatchCommands = 512
	maxBatchBytes    = 1 << 20
)

// A batch is what one log entry carries: commands of one origin, that is of one
// run of one peer, each with the origin's sequence number.
//
//	version 2, origin (8 bytes), term, number of commands
//	each: sequence number, length, command
//
// The term is that of the leader the batch was made for. It has no effect as
// part of an entry of any other term: so the origin knows, once it has applied
// anything of a later term, that what has not had an effect will have none.
type batch struct {
	origin, term uint64
	items        []batchItem
}

type batchItem struct {
	seq     uint64
	command []byte
}

func (b *batch) encode() []byte {
	size := 1 + 8 + 2*binary.MaxVarintLen64
	for i := range b.items {
		size += 2*binary.MaxVarintLen64 + len(b.items[i].command)
	}
	out := append(make([]byte, 0, size), batchVersion)
	out = binary.BigEndian.AppendUint64(out, b.origin)
	out = binary.AppendUvarint(out, b.term)
	out = binary.AppendUvarint(out, uint64(len(b.items)))
	for i := range b.items {
		out = binary.AppendUvarint(out, b.items[i].seq)
		out = mvcc.AppendBytes(out, b.items[i].command)
	}
	return out
}

// decodeBatch reads a batch; the commands are sub-slices of data.
func decodeBatch(data []byte) (*batch, error) {
	p := mvcc.Parser{Rest: data}
	if v := p.Byte(); p.Err == nil && v != batchVersion {
		return nil, fmt.Errorf("%w: log entry has format %d, this program knows up to %d", ErrNewerVersion, v, batchVersion)
	}
	b := new(batch)
	if len(p.Rest) < 8 {
		return nil, mvcc.ErrShort
	}
	b.origin, p.Rest = binary.BigEndian.Uint64(p.Rest), p.Rest[8:]
	b.term = p.Uvarint()
	n := p.Count(minItemBytes)
	b.items = make([]batchItem, n)
	for i := range b.items {
		b.items[i] = batchItem{seq: p.Uvarint(), command: p.Bytes()}
	}
	if p.Err == nil && len(p.Rest) > 0 {
		p.Fail(fmt.Errorf("%w: %d bytes after the batch", ErrCorrupt, len(p.Rest)))
	}
	if p.Err != nil {
		return nil, p.Err
	}
	return b, nil
}

// minItemBytes is the least an item takes: number, length, and a command's
// version and kind.
const minItemBytes = 4

// known refuses commands this program cannot read, looking at no more than what
// they are.
func (b *batch) known() error {
	for i := range b.items {
		c := b.items[i].command
		if len(c) < 2 {
			return mvcc.ErrShort
		}
		if c[0] != mvcc.CommandVersion || mvcc.Kind(c[1]) > mvcc.LastKind {
			return fmt.Errorf("%w: a command has format %d, kind %d", ErrNewerVersion, c[0], c[1])
		}
	}
	return nil
}

// checkEntry reads a log entry of any version to its last byte.
func checkEntry(data []byte) error {
	if len(data) == 0 || data[0] != batchVersion {
		_, err := mvcc.DecodeCommand(data)
		return err
	}
	b, err := decodeBatch(data)
	if err != nil {
		return err
	}
	for i := range b.items {
		if _, err := mvcc.DecodeCommand(b.items[i].command); err != nil {
			return fmt.Errorf("command %d: %w", b.items[i].seq, err)
		}
	}
	return nil
}
