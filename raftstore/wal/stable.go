package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
)

// stableFile keeps Raft's term and vote: a few bytes that must be synced before a server may answer, so an election takes as long as
// writing them. It has two slots that are written in turn, in place, with one fdatasync each.
//
//	slot: sequence u64, length u16, length × (key, value), zeros, CRC-32C u32
//
// A slot is a disk sector, which is written as a whole or not at all, and the other slot is not written meanwhile. So both are sound at any
// time, and a slot that is not sound means damage.
type stableFile struct {
	path string

	mu  sync.Mutex
	f   *os.File
	seq uint64
	now map[string][]byte
}

const (
	slotSize  = 512
	slotApart = 4096
	slotFixed = 8 + 2 + 4
)

// encodeSlot returns the sector that holds kv.
func encodeSlot(seq uint64, kv map[string][]byte) ([]byte, error) {
	var body []byte
	for _, k := range slices.Sorted(maps.Keys(kv)) {
		body = appendField(appendField(body, []byte(k)), kv[k])
	}
	if len(body) > slotSize-slotFixed {
		return nil, fmt.Errorf("%w: %d bytes of term and vote", errTooLarge, len(body))
	}
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, slotSize), seq)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(body)))
	b = append(b, body...)
	b = b[:slotSize-4]
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, diskfile.Castagnoli)), nil
}

// decodeSlot reads a sector that encodeSlot returned.
func decodeSlot(b []byte) (seq uint64, kv map[string][]byte, err error) {
	if len(b) != slotSize || binary.LittleEndian.Uint32(b[slotSize-4:]) != crc32.Checksum(b[:slotSize-4], diskfile.Castagnoli) {
		return 0, nil, fmt.Errorf("%w: it does not match its checksum", errdefs.ErrCorrupt)
	}
	n := int(binary.LittleEndian.Uint16(b[8:]))
	if n > slotSize-slotFixed {
		return 0, nil, errShort
	}
	kv = map[string][]byte{}
	for rest := b[10 : 10+n]; len(rest) > 0; {
		var k, v []byte
		var ok bool
		if k, rest, ok = cutField(rest); ok {
			v, rest, ok = cutField(rest)
		}
		if !ok {
			return 0, nil, errShort
		}
		kv[string(k)] = append([]byte{}, v...)
	}
	return binary.LittleEndian.Uint64(b), kv, nil
}

var (
	errShort    = fmt.Errorf("%w: input ends early", errdefs.ErrCorrupt)
	errTooLarge = errors.New("more than a sector holds")
)

// appendField appends v with its length before it.
func appendField(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// cutField reads a field at the front of b and returns it and the rest.
func cutField(b []byte) (v, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	return b[size : size+int(n)], b[size+int(n):], true
}

// openStable opens path, which it makes first when fresh is set.
func openStable(path string, fresh bool) (*stableFile, error) {
	s := &stableFile{path: path, seq: 1, now: map[string][]byte{}}
	if fresh {
		if err := s.create(); err != nil {
			return nil, diskfile.Error(path, err)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, diskfile.Corrupt(path, errors.New("missing"))
	}
	if err != nil {
		return nil, diskfile.Error(path, err)
	}
	s.f = f
	for i := range int64(2) {
		b := make([]byte, slotSize)
		if _, err := f.ReadAt(b, i*slotApart); err != nil {
			return nil, errors.Join(diskfile.Corrupt(path, errShort), f.Close())
		}
		seq, kv, err := decodeSlot(b)
		if err != nil {
			return nil, errors.Join(diskfile.Corrupt(path, err), f.Close())
		}
		if i == 0 || seq > s.seq {
			s.seq, s.now = seq, kv
		}
	}
	return s, nil
}

func (s *stableFile) create() error {
	b := make([]byte, slotApart+slotSize)
	for i := range 2 {
		slot, err := encodeSlot(uint64(i), nil)
		if err != nil {
			return err
		}
		copy(b[i*slotApart:], slot)
	}
	return diskfile.WriteSynced(s.path, b)
}

// set stores v under k, synced. After an error the value may be on disk and be read by the next process, while get returns the old one.
func (s *stableFile) set(k, v []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.now)
	next[string(k)] = bytes.Clone(v)
	b, err := encodeSlot(s.seq+1, next)
	if err != nil {
		return err
	}
	if _, err := s.f.WriteAt(b, int64((s.seq+1)%2)*slotApart); err != nil {
		return err
	}
	if err := datasync(s.f); err != nil {
		return err
	}
	s.seq, s.now = s.seq+1, next
	return nil
}

// get returns the value that set stored under k, and whether there is one.
func (s *stableFile) get(k []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.now[string(k)]
	return append([]byte{}, v...), ok
}

func (s *stableFile) close() error { return s.f.Close() }
