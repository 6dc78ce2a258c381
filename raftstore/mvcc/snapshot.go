package mvcc

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// A snapshot is the store at its compact revision and every change since:
//
//	magic, version
//	frame: revision, compact revision, counts of leases, keys, events
//	       from version 2 on: index, term, live keys
//	frames: leases, ascending        (id, TTL)
//	frames: keys at the compact revision, ascending
//	frames: events after it, in order
//	frame of length 0
//	CRC-32C of everything before it, 4 bytes, big endian
//
// A frame is a uvarint length and that many bytes. From version 2 on, the CRC of everything before follows each frame, and the one at
// the end is the same: a reader uses no byte that it has not checked. The history is part of a snapshot so that watchers and lists
// resume after a restart, and so that equal states have equal bytes. Exported snapshots have the same format.
const (
	snapshotVersion = 2

	// maxSnapshotFrame bounds a frame of version 2. A key and its value come in one log entry, which is smaller.
	maxSnapshotFrame = 64 << 20
)

var (
	snapshotMagic = []byte("balsa-kv")
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
)

// SnapshotInfo describes the content of a snapshot.
type SnapshotInfo struct {
	Format          int
	Revision        int64 // of the store when it was taken
	CompactRevision int64 // oldest revision it can show
	Keys            int64 // live keys; in format 1 the keys at CompactRevision
	Events          int64 // after CompactRevision
	Leases          int64
	Bytes           int64  // size of the snapshot
	Index, Term     uint64 // the last log entry in it; 0 in format 1
}

// snapshotWriter writes frames and keeps their checksum.
type snapshotWriter struct {
	w     *bufio.Writer
	sum   uint32
	bytes int64
	err   error
}

func (s *snapshotWriter) raw(b []byte) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
		s.bytes += int64(len(b))
	}
}

func (s *snapshotWriter) write(b []byte) {
	s.sum = crc32.Update(s.sum, castagnoli, b)
	s.raw(b)
}

func (s *snapshotWriter) frame(b []byte) {
	if len(b) > maxSnapshotFrame && s.err == nil {
		s.err = fmt.Errorf("%w: %d bytes of one key in a snapshot", errdefs.ErrTooLarge, len(b))
	}
	var head [binary.MaxVarintLen64]byte
	s.write(head[:binary.PutUvarint(head[:], uint64(len(b)))])
	s.write(b)
	if len(b) > 0 {
		s.raw(binary.BigEndian.AppendUint32(head[:0], s.sum))
	}
}

// WriteSnapshotAt writes r, the state after entry number index of the given term. It takes no lock, so writes go on.
func WriteSnapshotAt(w io.Writer, r *Root, index, term uint64) (SnapshotInfo, error) {
	info := SnapshotInfo{Format: snapshotVersion, Index: index, Term: term}
	base, err := r.Hist.ViewAt(r.Hist.Compacted(), r.View)
	if err != nil {
		return info, err
	}
	info.Revision, info.CompactRevision = r.View.Rev, r.Hist.Compacted()
	info.Leases, info.Keys, info.Events = int64(r.Leases.Len()), int64(r.View.Len()), int64(len(r.Hist.Events))
	s := &snapshotWriter{w: bufio.NewWriterSize(w, 256<<10)}
	s.write(append(bytes.Clone(snapshotMagic), snapshotVersion))
	s.frame(info.head(nil, base.Len()))
	var b []byte
	r.Leases.Scan(func(id LeaseID, ttl int64) bool {
		b = binary.AppendUvarint(binary.AppendVarint(b[:0], int64(id)), uint64(ttl))
		s.frame(b)
		return s.err == nil
	})
	base.Ascend("", fromKeyEnd, func(kv *KeyValue) bool {
		b = appendKeyValue(b[:0], kv)
		s.frame(b)
		return s.err == nil
	})
	for i := range r.Hist.Events {
		if s.err != nil {
			break
		}
		e := &r.Hist.Events[i]
		b = appendKeyValue(append(b[:0], byte(e.Type)), e.KV)
		s.frame(b)
	}
	s.frame(nil)
	s.raw(binary.BigEndian.AppendUint32(nil, s.sum))
	if s.err == nil {
		s.err = s.w.Flush()
	}
	info.Bytes = s.bytes
	return info, s.err
}

// head appends the first frame to b. base is the number of keys at the compact revision.
func (i *SnapshotInfo) head(b []byte, base int) []byte {
	b = binary.AppendVarint(b, i.Revision)
	b = binary.AppendVarint(b, i.CompactRevision)
	b = binary.AppendUvarint(b, uint64(i.Leases))
	b = binary.AppendUvarint(b, uint64(base))
	b = binary.AppendUvarint(b, uint64(i.Events))
	b = binary.AppendUvarint(b, i.Index)
	b = binary.AppendUvarint(b, i.Term)
	return binary.AppendUvarint(b, uint64(i.Keys))
}

// Rebase makes the state of a snapshot the successor of a store at revision current. It gets a revision that neither has had and no
// history: everything older counts as compacted. So watchers of either list anew, and no revision ever means two states.
func (s *State) Rebase(current int64) {
	s.Rev = max(current, s.Rev) + 1
	s.hist = History{marks: []mark{{rev: s.Rev, tree: s.tree.Copy()}}}
}
