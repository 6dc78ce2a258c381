package raftstore

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/hashicorp/raft-wal/types"
)

// walFormat is the version of a WAL directory this code writes.
const walFormat = 1

// walState is what a WAL directory keeps beside its segments: which segments
// there are, and how far the log is known to reach. It is one small file that is
// replaced as a whole, with a checksum of its own.
type walState struct {
	Format        int
	Nonce         uint32 // random per directory: seeds the checksums in segments
	NextSegmentID uint64
	Segments      []types.SegmentInfo
	// Last is an index that the log reaches at the least. A log that ends
	// before it lost something that was acknowledged.
	Last uint64
}

// encode returns the text of s: a line of JSON, a line with its CRC-32C.
func (s *walState) encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(b, "\n%08x\n", crc32.Checksum(b, castagnoli)), nil
}

// decodeWALState reads what encode wrote and checks that it makes sense.
func decodeWALState(b []byte) (*walState, error) {
	line, sum, ok := bytes.Cut(b, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli)) {
		return nil, fmt.Errorf("%w: it does not match its checksum", ErrCorrupt)
	}
	var v struct{ Format int }
	if err := json.Unmarshal(line, &v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if v.Format > walFormat {
		return nil, fmt.Errorf("%w: log has format %d, this program knows up to %d", ErrNewerVersion, v.Format, walFormat)
	}
	s := new(walState)
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return s, s.check()
}

// check expects sealed segments without a gap, then the one that is written to.
func (s *walState) check() error {
	if s.Format < 1 {
		return fmt.Errorf("%w: incomplete", ErrCorrupt)
	}
	for i, seg := range s.Segments {
		tail := i == len(s.Segments)-1
		switch {
		case seg.BaseIndex == 0, seg.MinIndex < seg.BaseIndex, seg.ID >= s.NextSegmentID, seg.SealTime.IsZero() != tail,
			!tail && (seg.MaxIndex < seg.MinIndex || seg.MaxIndex+1 != s.Segments[i+1].BaseIndex):
			return fmt.Errorf("%w: segment %d makes no sense", ErrCorrupt, seg.ID)
		}
	}
	return nil
}

func (s *walState) clone() *walState {
	c := *s
	c.Segments = slices.Clone(s.Segments)
	return &c
}

func (s *walState) tail() types.SegmentInfo {
	if len(s.Segments) == 0 {
		return types.SegmentInfo{}
	}
	return s.Segments[len(s.Segments)-1]
}

// walMeta keeps a walState on disk. It is raft-wal's MetaStore.
type walMeta struct {
	path string

	mu     sync.Mutex
	now    *walState // what counts
	unsure bool      // a write failed: the file may hold what does not count
}

var _ types.MetaStore = (*walMeta)(nil)

// openWALMeta reads path. It reports false when there is no such file.
func openWALMeta(path string) (*walMeta, bool, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		var n [4]byte
		rand.Read(n[:])
		s := &walState{Format: walFormat, Nonce: binary.BigEndian.Uint32(n[:])}
		return &walMeta{path: path, now: s}, false, nil
	}
	if err != nil {
		return nil, false, diskError(path, err)
	}
	s, err := decodeWALState(b)
	if errors.Is(err, ErrNewerVersion) {
		return nil, true, fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return nil, true, corrupt(path, err)
	}
	return &walMeta{path: path, now: s}, true, nil
}

// update makes what change made of the state durable, or leaves it as it was.
func (m *walMeta) update(change func(*walState)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.now.clone()
	change(next)
	return m.write(next)
}

func (m *walMeta) write(s *walState) error {
	b, err := s.encode()
	if err != nil {
		return err
	}
	if err := writeSynced(m.path, b); err != nil {
		m.unsure = true
		return err
	}
	m.now, m.unsure = s, false
	return nil
}

// settle repeats the last state that counts when a later write failed half way:
// nothing may be appended while the file could say otherwise.
func (m *walMeta) settle() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.unsure {
		return nil
	}
	return m.write(m.now)
}

// Load implements types.MetaStore.
func (m *walMeta) Load(string) (types.PersistentState, error) {
	s := m.state()
	return types.PersistentState{NextSegmentID: s.NextSegmentID, Segments: s.Segments}, nil
}

func (m *walMeta) state() *walState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.clone()
}

// CommitState implements types.MetaStore. A new tail begins where everything
// before it is durable, be it after a rotation or after a truncation, so it
// says how far the log reaches.
func (m *walMeta) CommitState(p types.PersistentState) error {
	return m.update(func(s *walState) {
		before := s.tail()
		s.NextSegmentID, s.Segments = p.NextSegmentID, slices.Clone(p.Segments)
		if t := s.tail(); t.ID != before.ID || before.BaseIndex != t.BaseIndex {
			s.Last = t.BaseIndex - 1
		}
	})
}

// reached raises how far the log is known to reach.
func (m *walMeta) reached(index uint64) error {
	if m.state().Last >= index {
		return nil
	}
	return m.update(func(s *walState) { s.Last = max(s.Last, index) })
}

// GetStable implements types.MetaStore. Term and vote are kept elsewhere.
func (m *walMeta) GetStable([]byte) ([]byte, error) { return nil, nil }

// SetStable implements types.MetaStore.
func (m *walMeta) SetStable(key, _ []byte) error {
	return fmt.Errorf("%w: %q is not kept with the segments", ErrInvalid, key)
}

// Close implements io.Closer.
func (m *walMeta) Close() error { return nil }
