package wal

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

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
)

// format is the version of a WAL directory that this program writes.
const format = 1

// segments is the content of the file meta: which segments there are, and an index that the log reaches. It is one small file with a
// checksum, which is replaced as a whole.
type segments struct {
	Format        int
	Nonce         uint32 // random per directory: seeds the checksums in segments
	NextSegmentID uint64
	Segments      []types.SegmentInfo
	// Last is an index that the log reaches. A log that ends before it has lost acknowledged entries.
	Last uint64
}

// encode returns the text of s: a line of JSON, and a line with its CRC-32C.
func (s *segments) encode() ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(b, "\n%08x\n", crc32.Checksum(b, diskfile.Castagnoli)), nil
}

// decodeSegments reads the text that encode returns, and checks it.
func decodeSegments(b []byte) (*segments, error) {
	line, sum, ok := bytes.Cut(b, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(line, diskfile.Castagnoli)) {
		return nil, fmt.Errorf("%w: it does not match its checksum", errdefs.ErrCorrupt)
	}
	var v struct{ Format int }
	if err := json.Unmarshal(line, &v); err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	if v.Format > format {
		return nil, fmt.Errorf("%w: log has format %d, this program knows up to %d", errdefs.ErrNewerVersion, v.Format, format)
	}
	s := new(segments)
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	return s, s.check()
}

// check returns an error unless s has sealed segments without a gap, followed by the one that is written to.
func (s *segments) check() error {
	if s.Format < 1 {
		return fmt.Errorf("%w: incomplete", errdefs.ErrCorrupt)
	}
	for i, seg := range s.Segments {
		tail := i == len(s.Segments)-1
		switch {
		case seg.BaseIndex == 0, seg.MinIndex < seg.BaseIndex, seg.ID >= s.NextSegmentID, seg.SealTime.IsZero() != tail,
			!tail && (seg.MaxIndex < seg.MinIndex || seg.MaxIndex+1 != s.Segments[i+1].BaseIndex):
			return fmt.Errorf("%w: segment %d contradicts its neighbours", errdefs.ErrCorrupt, seg.ID)
		}
	}
	return nil
}

func (s *segments) clone() *segments {
	c := *s
	c.Segments = slices.Clone(s.Segments)
	return &c
}

func (s *segments) tail() types.SegmentInfo {
	if len(s.Segments) == 0 {
		return types.SegmentInfo{}
	}
	return s.Segments[len(s.Segments)-1]
}

// metaFile is the file meta. It is raft-wal's MetaStore.
type metaFile struct {
	path string

	mu     sync.Mutex
	now    *segments // the valid content
	unsure bool      // a write failed: the file may hold another content than now
}

var _ types.MetaStore = (*metaFile)(nil)

// openMeta reads path. It returns false when there is no such file.
func openMeta(path string) (*metaFile, bool, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		var n [4]byte
		rand.Read(n[:])
		s := &segments{Format: format, Nonce: binary.BigEndian.Uint32(n[:])}
		return &metaFile{path: path, now: s}, false, nil
	}
	if err != nil {
		return nil, false, diskfile.Error(path, err)
	}
	s, err := decodeSegments(b)
	if errors.Is(err, errdefs.ErrNewerVersion) {
		return nil, true, fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return nil, true, diskfile.Corrupt(path, err)
	}
	return &metaFile{path: path, now: s}, true, nil
}

// update changes the content and writes it. After an error the content is as it was.
func (m *metaFile) update(change func(*segments)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.now.clone()
	change(next)
	return m.write(next)
}

func (m *metaFile) write(s *segments) error {
	b, err := s.encode()
	if err != nil {
		return err
	}
	if err := diskfile.WriteSynced(m.path, b); err != nil {
		m.unsure = true
		return err
	}
	m.now, m.unsure = s, false
	return nil
}

// settle writes the valid content again after a write that failed: nothing may be appended while the file may hold another content.
func (m *metaFile) settle() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.unsure {
		return nil
	}
	return m.write(m.now)
}

// Load implements types.MetaStore.
func (m *metaFile) Load(string) (types.PersistentState, error) {
	s := m.state()
	return types.PersistentState{NextSegmentID: s.NextSegmentID, Segments: s.Segments}, nil
}

func (m *metaFile) state() *segments {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.clone()
}

// CommitState implements types.MetaStore. A new last segment begins, after a rotation or a truncation, where everything before it is
// durable. So its base index is an index that the log reaches.
func (m *metaFile) CommitState(p types.PersistentState) error {
	return m.update(func(s *segments) {
		before := s.tail()
		s.NextSegmentID, s.Segments = p.NextSegmentID, slices.Clone(p.Segments)
		if t := s.tail(); t.ID != before.ID || before.BaseIndex != t.BaseIndex {
			s.Last = t.BaseIndex - 1
		}
	})
}

// reached records that the log reaches index.
func (m *metaFile) reached(index uint64) error {
	if m.state().Last >= index {
		return nil
	}
	return m.update(func(s *segments) { s.Last = max(s.Last, index) })
}

// GetStable implements types.MetaStore. Term and vote are in stableFile.
func (m *metaFile) GetStable([]byte) ([]byte, error) { return nil, nil }

// SetStable implements types.MetaStore.
func (m *metaFile) SetStable(key, _ []byte) error {
	return fmt.Errorf("%q is not kept with the segments", key)
}

// Close implements io.Closer.
func (m *metaFile) Close() error { return nil }
