package raftstore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/tidwall/btree"
)

// A snapshot is the store as it was at its compact revision, and every change
// since:
//
//	magic, version
//	frame: revision, compact revision, counts of leases, keys, events
//	frames: leases, ascending        (id, TTL)
//	frames: keys at the compact revision, ascending
//	frames: events after it, in order
//	frame of length 0
//	CRC-32C of everything before it, 4 bytes, big endian
//
// A frame is a uvarint length and so many bytes. The history travels with the
// state so that watchers and lists resume after a restart, and so that equal
// state means equal bytes.
const snapshotVersion = 1

var (
	snapshotMagic = []byte("balsa-kv")
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
)

// snapshotWriter frames what it is given and sums it up.
type snapshotWriter struct {
	w   *bufio.Writer
	sum hash.Hash32
	buf []byte
	err error
}

func (s *snapshotWriter) write(b []byte) {
	if s.err == nil {
		s.sum.Write(b)
		_, s.err = s.w.Write(b)
	}
}

func (s *snapshotWriter) frame(b []byte) {
	var head [binary.MaxVarintLen64]byte
	s.write(head[:binary.PutUvarint(head[:], uint64(len(b)))])
	s.write(b)
}

// writeSnapshot writes r. It holds r and nothing else, so writes go on.
func writeSnapshot(w io.Writer, r *root) error {
	base, err := r.hist.viewAt(r.hist.compacted(), r.view)
	if err != nil {
		return err
	}
	s := &snapshotWriter{w: bufio.NewWriterSize(w, 256<<10), sum: crc32.New(castagnoli)}
	s.write(append(bytes.Clone(snapshotMagic), snapshotVersion))
	b := binary.AppendVarint(s.buf, r.view.rev)
	b = binary.AppendVarint(b, r.hist.compacted())
	b = binary.AppendUvarint(b, uint64(r.leases.Len()))
	b = binary.AppendUvarint(b, uint64(base.Len()))
	b = binary.AppendUvarint(b, uint64(len(r.hist.events)))
	s.frame(b)
	r.leases.Scan(func(id LeaseID, ttl int64) bool {
		b = binary.AppendUvarint(binary.AppendVarint(b[:0], int64(id)), uint64(ttl))
		s.frame(b)
		return s.err == nil
	})
	base.Ascend("", fromKeyEnd, func(kv *KeyValue) bool {
		b = appendKeyValue(b[:0], kv)
		s.frame(b)
		return s.err == nil
	})
	for i := range r.hist.events {
		e := &r.hist.events[i]
		b = appendKeyValue(append(b[:0], byte(e.Type)), e.KV)
		s.frame(b)
	}
	s.frame(nil)
	if s.err == nil {
		_, s.err = s.w.Write(binary.BigEndian.AppendUint32(nil, s.sum.Sum32()))
	}
	if s.err == nil {
		s.err = s.w.Flush()
	}
	return s.err
}

// summingReader computes the checksum of what is read through it.
type summingReader struct {
	r   *bufio.Reader
	sum uint32
	one [1]byte
}

func (s *summingReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum = crc32.Update(s.sum, castagnoli, p[:n])
	return n, err
}

func (s *summingReader) ReadByte() (byte, error) {
	c, err := s.r.ReadByte()
	if err == nil {
		s.one[0] = c
		s.sum = crc32.Update(s.sum, castagnoli, s.one[:])
	}
	return c, err
}

// snapshotReader rebuilds a state from its frames.
type snapshotReader struct {
	r     *summingReader
	state *state
	rev   int64 // of the last event, the compact revision before the first
}

// readSnapshot reads what writeSnapshot wrote, to the last byte.
func readSnapshot(r *bufio.Reader) (*state, error) {
	s := &snapshotReader{r: &summingReader{r: r}, state: newState()}
	head := make([]byte, len(snapshotMagic)+1)
	if _, err := io.ReadFull(s.r, head); err != nil {
		return nil, short(err)
	}
	if !bytes.Equal(head[:len(snapshotMagic)], snapshotMagic) {
		return nil, fmt.Errorf("%w: not a snapshot", ErrCorrupt)
	}
	if v := head[len(snapshotMagic)]; v != snapshotVersion {
		return nil, fmt.Errorf("%w: snapshot has format %d, this program knows up to %d", ErrNewerVersion, v, snapshotVersion)
	}
	if err := s.body(); err != nil {
		return nil, err
	}
	end, err := readFrame(s.r, 0)
	if err != nil {
		return nil, err
	}
	sum, want := s.r.sum, make([]byte, 4)
	if _, err := io.ReadFull(r, want); err != nil {
		return nil, short(err)
	}
	if len(end) != 0 || binary.BigEndian.Uint32(want) != sum {
		return nil, fmt.Errorf("%w: snapshot checksum does not match", ErrCorrupt)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return nil, fmt.Errorf("%w: snapshot goes on after its end", ErrCorrupt)
	}
	return s.state, nil
}

func (s *snapshotReader) body() error {
	b, err := readFrame(s.r, maxFrameSize)
	if err != nil {
		return err
	}
	p := parser{b: b}
	rev, compacted := p.varint(), p.varint()
	leases, keys, events := p.uvarint(), p.uvarint(), p.uvarint()
	if p.err != nil {
		return p.err
	}
	if compacted < firstRevision || rev < compacted {
		return fmt.Errorf("%w: revision %d, compact revision %d", ErrCorrupt, rev, compacted)
	}
	for range leases {
		if err := s.lease(); err != nil {
			return err
		}
	}
	if err := s.keys(keys, compacted); err != nil {
		return err
	}
	s.rev = compacted
	for range events {
		if err := s.event(rev); err != nil {
			return err
		}
	}
	// The newest change may have been of a kind that leaves no event.
	s.state.rev = rev
	s.state.tree.Scan(func(_ string, kv *KeyValue) bool {
		s.state.attach(kv)
		s.state.bytes += kv.size()
		return true
	})
	return nil
}

func (s *snapshotReader) lease() error {
	b, err := readFrame(s.r, maxFrameSize)
	if err != nil {
		return err
	}
	p := parser{b: b}
	id, ttl := LeaseID(p.varint()), p.uvarint()
	if p.err == nil && (ttl > maxLeaseMillis || len(p.b) > 0) {
		p.fail(fmt.Errorf("%w: lease %x", ErrCorrupt, int64(id)))
	}
	s.state.leases.Set(id, int64(ttl))
	return p.err
}

func (s *snapshotReader) keys(n uint64, compacted int64) error {
	base, last := new(btree.Map[string, *KeyValue]), ""
	for i := range n {
		b, err := readFrame(s.r, maxFrameSize)
		if err != nil {
			return err
		}
		p := parser{b: b}
		kv := p.keyValue()
		if p.err != nil || len(p.b) > 0 || i > 0 && kv.Key <= last || kv.ModRevision > compacted {
			return fmt.Errorf("%w: key number %d", ErrCorrupt, i)
		}
		last = kv.Key
		base.Load(kv.Key, kv)
	}
	s.state.tree = base
	s.state.hist.marks = []mark{{rev: compacted, tree: base.Copy()}}
	return nil
}

func (s *snapshotReader) event(newest int64) error {
	b, err := readFrame(s.r, maxFrameSize)
	if err != nil {
		return err
	}
	p := parser{b: b}
	t := EventType(p.byte())
	kv := p.keyValue()
	if p.err != nil || len(p.b) > 0 || t > EventDelete || kv.ModRevision < s.rev || kv.ModRevision > newest {
		return fmt.Errorf("%w: event after revision %d", ErrCorrupt, s.rev)
	}
	if h := &s.state.hist; h.tail >= markEvery && kv.ModRevision > s.rev {
		h.remember(&View{tree: s.state.tree.Copy(), rev: s.rev})
	}
	prev, _ := s.state.tree.Get(kv.Key)
	if prev != nil {
		kv.Key = prev.Key
	}
	e := Event{Type: t, KV: kv, Prev: prev}
	redo(s.state.tree, &e)
	s.state.hist.append(e)
	s.rev = kv.ModRevision
	return nil
}
