package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hashicorp/raft-wal/types"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
)

// A segment is a header and batches, each one append and one fsync:
//
//	"balsawal", version u32, 0 u32, base index u64, ID u64, 0 u32, CRC u32
//	batch: magic u32, entries u32, first index u64,
//	       body length u32, CRC of the entries' heads u32,
//	       CRC of the batch before u32, CRC of this head u32
//	       entries: length u32, CRC of index and data u32, data; then zeros
//	       to a multiple of 8
//
// Numbers are little endian. The CRC of a head is seeded with the directory's nonce, base and ID, and chains to the batch before. So bytes
// that are left over, or moved or copied from another place, do not pass for a batch.
//
// A batch is written only after the batch before it is synced. So a damaged batch with a sound one behind it was acknowledged, and is an
// error. Without one behind it, it may be an append that a crash tore, and is dropped, unless segments.Last says that the log reached
// further.
const (
	segmentVersion = 1
	segmentHead    = 40
	batchHead      = 32
	entryHead      = 8
	batchMagic     = 0x48435442 // "BTCH"
	segmentSuffix  = ".wal"

	// segmentSize is the size in bytes from which on a new segment is begun.
	segmentSize = 64 << 20
	// reserveStep is how much of a segment is allocated at once, so that most appends do not change the file's metadata.
	reserveStep = 4 << 20
)

var segmentMagic = []byte("balsawal")

// segmentKey seeds the checksums of a segment, so that those of other segments do not match.
type segmentKey struct {
	nonce    uint32
	base, id uint64
}

func (k segmentKey) seed() uint32 {
	b := binary.LittleEndian.AppendUint32(nil, k.nonce)
	b = binary.LittleEndian.AppendUint64(b, k.base)
	return crc32.Checksum(binary.LittleEndian.AppendUint64(b, k.id), diskfile.Castagnoli)
}

func (k segmentKey) appendHead(b []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(append(b, segmentMagic...), segmentVersion)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, k.base)
	b = binary.LittleEndian.AppendUint64(b, k.id)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint32(b, crc32.Update(k.seed(), diskfile.Castagnoli, b[at:]))
}

func entrySum(index uint64, data []byte) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], index)
	return crc32.Update(crc32.Checksum(b[:], diskfile.Castagnoli), diskfile.Castagnoli, data)
}

// appendBatch appends a batch of entries to b and calls at with the offset of each entry in b.
func (k segmentKey) appendBatch(b []byte, prev uint32, entries []types.LogEntry, at func(int)) []byte {
	start := len(b)
	b = append(b, make([]byte, batchHead)...)
	sum := uint32(0)
	for i := range entries {
		e := &entries[i]
		at(len(b))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Data)))
		b = binary.LittleEndian.AppendUint32(b, entrySum(e.Index, e.Data))
		sum = crc32.Update(sum, diskfile.Castagnoli, b[len(b)-entryHead:])
		b = append(b, e.Data...)
	}
	b = append(b, make([]byte, -(len(b)-start)&7)...)
	h := b[start : start+batchHead]
	binary.LittleEndian.PutUint32(h, batchMagic)
	binary.LittleEndian.PutUint32(h[4:], uint32(len(entries)))
	binary.LittleEndian.PutUint64(h[8:], entries[0].Index)
	binary.LittleEndian.PutUint32(h[16:], uint32(len(b)-start-batchHead))
	binary.LittleEndian.PutUint32(h[20:], sum)
	binary.LittleEndian.PutUint32(h[24:], prev)
	binary.LittleEndian.PutUint32(h[28:], crc32.Update(k.seed(), diskfile.Castagnoli, h[:28]))
	return b
}

// batchSum returns the CRC in the head of the batch at the start of b.
func batchSum(b []byte) uint32 { return binary.LittleEndian.Uint32(b[28:]) }

// segment is one segment file. The file is made with its first append.
type segment struct {
	path string
	key  segmentKey
	info types.SegmentInfo
	full int64 // size from which on it is sealed

	settle  func() error // before an append: see metaFile.settle
	gone    func(*segment)
	openNew func(path string) (*os.File, int64, error) // makes the file
	half    func()                                     // the segment is half full

	mu      sync.RWMutex // guards the fields that readers use
	offsets []int64      // of the entries
	end     int64        // offset of the next batch
	f       *os.File

	// Used by Append only.
	chain   uint32 // CRC of the batch before
	size    int64  // of the file, as far as it is reserved
	ragged  bool   // there are bytes behind end that do not count
	plain   bool   // the file system cannot reserve space
	listed  bool   // the directory entry is durable
	scratch []byte
}

var (
	_ types.SegmentWriter = (*segment)(nil)
	_ types.SegmentReader = (*segment)(nil)
)

// Append implements types.SegmentWriter. After an error the segment is as it was: the next append first cuts off the bytes that were
// written.
func (s *segment) Append(entries []types.LogEntry) error {
	if len(entries) == 0 {
		return nil
	}
	if err := s.prepare(); err != nil {
		return err
	}
	b, chain := s.scratch[:0], s.chain
	if s.end == 0 {
		b = s.key.appendHead(b)
		chain = binary.LittleEndian.Uint32(b[segmentHead-4:])
	}
	start := len(b)
	offsets := make([]int64, 0, len(entries))
	b = s.key.appendBatch(b, chain, entries, func(at int) { offsets = append(offsets, s.end+int64(at)) })
	if cap(b) <= 4<<20 {
		s.scratch = b
	}
	s.reserve(s.end + int64(len(b)))
	if err := s.write(b); err != nil {
		s.ragged = true
		return err
	}
	s.chain = batchSum(b[start:])
	s.mu.Lock()
	s.end += int64(len(b))
	s.offsets = append(s.offsets, offsets...)
	s.mu.Unlock()
	s.size = max(s.size, s.end)
	if s.end-int64(len(b)) < s.full/2 && s.end >= s.full/2 {
		s.half()
	}
	return nil
}

// write writes b at the end and syncs it.
func (s *segment) write(b []byte) error {
	if _, err := s.f.WriteAt(b, s.end); err != nil {
		return err
	}
	if err := datasync(s.f); err != nil {
		return err
	}
	if !s.listed {
		if err := diskfile.SyncDir(filepath.Dir(s.path)); err != nil {
			return err
		}
		s.listed = true
	}
	return nil
}

// prepare opens the file and cuts off the bytes that a failed or torn append left behind the end.
func (s *segment) prepare() error {
	if err := s.settle(); err != nil {
		return err
	}
	if s.f == nil {
		f, size, err := s.openNew(s.path)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.f = f
		s.mu.Unlock()
		s.size = size
	}
	if !s.ragged {
		return nil
	}
	if err := s.f.Truncate(s.end); err != nil {
		return err
	}
	if err := s.f.Sync(); err != nil {
		return err
	}
	s.size, s.ragged = s.end, false
	return nil
}

// reserve allocates space ahead. It ignores errors: a disk without room for the reserve may have room for the entry.
func (s *segment) reserve(to int64) {
	if to <= s.size || s.plain {
		return
	}
	n := (to - s.size + reserveStep - 1) / reserveStep * reserveStep
	err := syscall.Fallocate(int(s.f.Fd()), 0, s.size, n)
	switch {
	case err == nil:
		s.size += n
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
		s.plain = true
	default:
		s.ragged = s.f.Truncate(s.size) != nil // gives back a part that was allocated
	}
}

// Sealed implements types.SegmentWriter. A segment that is full still takes appends until raft-wal has made the next one.
func (s *segment) Sealed() (bool, uint64, error) { return s.end >= s.full, uint64(s.end), nil }

// ForceSeal implements types.SegmentWriter. Segments have no index on disk, so it writes nothing.
func (s *segment) ForceSeal() (uint64, error) { return uint64(max(s.end, 1)), nil }

// LastIndex implements types.SegmentWriter.
func (s *segment) LastIndex() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.offsets) == 0 {
		return 0
	}
	return s.key.base + uint64(len(s.offsets)) - 1
}

// GetLog implements types.SegmentReader.
func (s *segment) GetLog(index uint64) (*types.PooledBuffer, error) {
	s.mu.RLock()
	f, at, end, ok := s.f, int64(0), int64(0), index >= s.info.MinIndex && index >= s.key.base && index-s.key.base < uint64(len(s.offsets))
	if ok {
		i := int(index - s.key.base)
		at = s.offsets[i]
		if end = s.end; i+1 < len(s.offsets) {
			end = s.offsets[i+1]
		}
	}
	s.mu.RUnlock()
	if !ok {
		return nil, types.ErrNotFound
	}
	b := make([]byte, end-at)
	if _, err := f.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	n := binary.LittleEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-entryHead) || entrySum(index, b[entryHead:entryHead+n]) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, fmt.Errorf("%w: %s: entry %d does not match its checksum", errdefs.ErrCorrupt, s.path, index)
	}
	return &types.PooledBuffer{Bs: b[entryHead : entryHead+n]}, nil
}

// load reads and checks the file of s.
func (s *segment) load(flag int) error {
	f, err := os.OpenFile(s.path, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return diskfile.Error(s.path, err)
	}
	s.f, s.listed = f, true
	st, err := f.Stat()
	if err != nil {
		return diskfile.Error(s.path, err)
	}
	found, err := scanSegment(f, st.Size(), s.key)
	if errors.Is(err, errdefs.ErrCorrupt) {
		return diskfile.Corrupt(s.path, err)
	}
	if err != nil {
		return diskfile.Error(s.path, err)
	}
	s.offsets, s.end, s.chain, s.ragged, s.size = found.offsets, found.end, found.chain, found.ragged, st.Size()
	return nil
}

// trim gives back the space that is reserved and not used.
func (s *segment) trim() error {
	if s.f == nil || s.size <= s.end {
		return nil
	}
	s.size = s.end
	return s.f.Truncate(s.end)
}

// Close implements io.Closer.
func (s *segment) Close() error {
	s.gone(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f == nil {
		return nil
	}
	err := s.f.Close()
	s.f = nil
	return err
}

func datasync(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}
