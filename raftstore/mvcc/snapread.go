package mvcc

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// snapshotParts receives the content of a snapshot as it is read.
type snapshotParts interface {
	lease(id LeaseID, ttl int64)
	key(kv *KeyValue)
	event(t EventType, kv *KeyValue)
}

// snapshotReader checks a snapshot and hands on its parts. It holds one frame in memory and allocates no more of it than has arrived.
type snapshotReader struct {
	r     *bufio.Reader
	sum   uint32
	bytes int64
	info  SnapshotInfo
	base  uint64 // keys at the compact revision
	to    snapshotParts
	spare []byte // buffer for the next frame, when the receiver keeps nothing
}

// readBytes reads n bytes and allocates no more than arrive.
func (s *snapshotReader) readBytes(n uint64) ([]byte, error) {
	const step = 1 << 20
	var b []byte
	if uint64(cap(s.spare)) >= n {
		b = s.spare[:n]
	} else {
		b = make([]byte, min(n, step))
	}
	for at := 0; ; {
		if _, err := io.ReadFull(s.r, b[at:]); err != nil {
			return nil, short(err)
		}
		if at = len(b); uint64(at) == n {
			break
		}
		b = append(b, make([]byte, min(n-uint64(at), uint64(max(at, step))))...)
	}
	s.sum = crc32.Update(s.sum, castagnoli, b)
	s.bytes += int64(n)
	if _, ok := s.to.(discardParts); ok {
		s.spare = b
	}
	return b, nil
}

// length reads the length of a frame.
func (s *snapshotReader) length() (uint64, error) {
	b, err := s.r.Peek(binary.MaxVarintLen64)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	n, w := binary.Uvarint(b)
	if w == 0 {
		return 0, ErrShort
	}
	if w < 0 {
		return 0, fmt.Errorf("%w: number of more than 64 bits", errdefs.ErrCorrupt)
	}
	s.sum = crc32.Update(s.sum, castagnoli, b[:w])
	s.bytes += int64(w)
	_, err = s.r.Discard(w)
	return n, err
}

// check reads a checksum and compares it with the sum so far.
func (s *snapshotReader) check() error {
	b, err := s.r.Peek(4)
	if err != nil {
		return short(err)
	}
	s.bytes += 4
	if binary.BigEndian.Uint32(b) != s.sum {
		return fmt.Errorf("%w: snapshot checksum does not match, at byte %d", errdefs.ErrCorrupt, s.bytes)
	}
	_, err = s.r.Discard(4)
	return err
}

// frame reads one frame that is not the last.
func (s *snapshotReader) frame() ([]byte, error) {
	limit := uint64(maxFrameSize)
	if s.info.Format > 1 {
		limit = maxSnapshotFrame
	}
	n, err := s.length()
	if err != nil {
		return nil, err
	}
	if n == 0 || n > limit {
		return nil, fmt.Errorf("%w: frame of %d bytes, at byte %d", errdefs.ErrCorrupt, n, s.bytes)
	}
	b, err := s.readBytes(n)
	if err == nil && s.info.Format > 1 {
		err = s.check()
	}
	return b, err
}

// run reads a snapshot to the last byte.
func (s *snapshotReader) run() error {
	if err := s.head(); err != nil {
		return err
	}
	for range s.info.Leases {
		if err := s.lease(); err != nil {
			return err
		}
	}
	if err := s.keys(); err != nil {
		return err
	}
	if err := s.events(); err != nil {
		return err
	}
	end, err := s.length()
	if err == nil && end != 0 {
		err = fmt.Errorf("%w: snapshot has more than it counts", errdefs.ErrCorrupt)
	}
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return err
	}
	if _, err := s.r.ReadByte(); !errors.Is(err, io.EOF) {
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: snapshot goes on after its end", errdefs.ErrCorrupt)
	}
	s.info.Bytes = s.bytes
	return nil
}

func (s *snapshotReader) head() error {
	head, err := s.readBytes(uint64(len(snapshotMagic) + 1))
	if err != nil {
		return err
	}
	if !bytes.Equal(head[:len(snapshotMagic)], snapshotMagic) {
		return fmt.Errorf("%w: not a snapshot", errdefs.ErrCorrupt)
	}
	v := int(head[len(snapshotMagic)])
	if v > snapshotVersion {
		return fmt.Errorf("%w: snapshot has format %d, this program knows up to %d", errdefs.ErrNewerVersion, v, snapshotVersion)
	}
	s.info.Format = max(v, 1)
	b, err := s.frame()
	if err != nil {
		return err
	}
	p := Parser{Rest: b}
	s.info.Revision, s.info.CompactRevision = p.Varint(), p.Varint()
	leases, keys, events := p.Uvarint(), p.Uvarint(), p.Uvarint()
	live := keys
	if v > 1 {
		s.info.Index, s.info.Term = p.Uvarint(), p.Uvarint()
		live = p.Uvarint()
	}
	s.base, s.info.Leases, s.info.Keys, s.info.Events = keys, int64(leases), int64(live), int64(events)
	if p.Err == nil && (v < 1 || s.info.CompactRevision < FirstRevision || s.info.Revision < s.info.CompactRevision ||
		s.info.Leases < 0 || s.info.Keys < 0 || s.info.Events < 0 || v > 1 && len(p.Rest) > 0) {
		p.Fail(fmt.Errorf("%w: format %d, revision %d, compact revision %d", errdefs.ErrCorrupt, v, s.info.Revision, s.info.CompactRevision))
	}
	return p.Err
}

func (s *snapshotReader) lease() error {
	b, err := s.frame()
	if err != nil {
		return err
	}
	p := Parser{Rest: b}
	id, ttl := LeaseID(p.Varint()), p.Uvarint()
	if p.Err == nil && (ttl > maxLeaseMillis || len(p.Rest) > 0) {
		p.Fail(fmt.Errorf("%w: lease %x", errdefs.ErrCorrupt, int64(id)))
	}
	if p.Err == nil {
		s.to.lease(id, int64(ttl))
	}
	return p.Err
}

func (s *snapshotReader) keys() error {
	last := ""
	for i := range s.base {
		b, err := s.frame()
		if err != nil {
			return err
		}
		p := Parser{Rest: b}
		kv := p.keyValue()
		if p.Err != nil || len(p.Rest) > 0 || i > 0 && kv.Key <= last || kv.ModRevision > s.info.CompactRevision {
			return fmt.Errorf("%w: key number %d", errdefs.ErrCorrupt, i)
		}
		last = kv.Key
		s.to.key(kv)
	}
	return nil
}

func (s *snapshotReader) events() error {
	rev := s.info.CompactRevision
	for range s.info.Events {
		b, err := s.frame()
		if err != nil {
			return err
		}
		p := Parser{Rest: b}
		t := EventType(p.Byte())
		kv := p.keyValue()
		if p.Err != nil || len(p.Rest) > 0 || t > EventDelete || kv.ModRevision < rev || kv.ModRevision > s.info.Revision {
			return fmt.Errorf("%w: event after revision %d", errdefs.ErrCorrupt, rev)
		}
		rev = kv.ModRevision
		s.to.event(t, kv)
	}
	return nil
}

// discardParts receives the parts of a snapshot that is only checked.
type discardParts struct{}

func (discardParts) lease(LeaseID, int64)       {}
func (discardParts) key(*KeyValue)              {}
func (discardParts) event(EventType, *KeyValue) {}

// VerifySnapshot reads a snapshot to its end and checks all of it. It holds one frame, at most the largest value, in memory. Its errors
// are errdefs.ErrCorrupt, errdefs.ErrNewerVersion, and those of r.
func VerifySnapshot(r io.Reader) (SnapshotInfo, error) {
	s := &snapshotReader{r: bufio.NewReaderSize(r, 1<<20), to: discardParts{}}
	err := s.run()
	return s.info, err
}

// ReadSnapshotAt reads a snapshot to the last byte and rebuilds its state.
func ReadSnapshotAt(r *bufio.Reader) (*State, SnapshotInfo, error) {
	b := &stateBuilder{state: NewState()}
	s := &snapshotReader{r: r, to: b}
	b.info = &s.info
	if err := s.run(); err != nil {
		return nil, s.info, err
	}
	b.finish()
	if n := int64(b.state.tree.Len()); s.info.Format > 1 && n != s.info.Keys {
		return nil, s.info, fmt.Errorf("%w: snapshot makes %d keys, not %d", errdefs.ErrCorrupt, n, s.info.Keys)
	}
	return b.state, s.info, nil
}

// stateBuilder makes a state from the parts of a snapshot.
type stateBuilder struct {
	state *State
	info  *SnapshotInfo
	rev   int64 // of the last event, the compact revision before the first
	based bool  // every key at the compact revision has been received
}

func (b *stateBuilder) lease(id LeaseID, ttl int64) { b.state.leases.Set(id, ttl) }

func (b *stateBuilder) key(kv *KeyValue) { b.state.tree.Load(kv.Key, kv) }

// base notes the tree at the compact revision, before the first event.
func (b *stateBuilder) base() {
	if !b.based {
		b.based, b.rev = true, b.info.CompactRevision
		b.state.hist.marks = []mark{{rev: b.rev, tree: b.state.tree.Copy()}}
	}
}

func (b *stateBuilder) event(t EventType, kv *KeyValue) {
	b.base()
	if h := &b.state.hist; h.tail >= markEvery && kv.ModRevision > b.rev {
		h.remember(&View{tree: b.state.tree.Copy(), Rev: b.rev})
	}
	prev, _ := b.state.tree.Get(kv.Key)
	if prev != nil {
		kv.Key = prev.Key
	}
	e := Event{Type: t, KV: kv, Prev: prev}
	redo(b.state.tree, &e)
	b.state.hist.append(e)
	b.rev = kv.ModRevision
}

func (b *stateBuilder) finish() {
	b.base()
	// The last events need not reach the newest revision: a restored state begins with a revision and no event.
	b.state.Rev = b.info.Revision
	b.state.tree.Scan(func(_ string, kv *KeyValue) bool {
		b.state.attach(kv)
		b.state.Bytes += kv.size()
		return true
	})
}
