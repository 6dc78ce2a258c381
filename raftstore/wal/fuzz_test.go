package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/hashicorp/raft-wal/types"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
)

func FuzzDecodeWALState(f *testing.F) {
	s := &segments{Format: 1, NextSegmentID: 1}
	b, err := s.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, b := range [][]byte{data, sumUp(data)} {
			s, err := decodeSegments(b)
			if err != nil {
				if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrNewerVersion) {
					t.Fatal(err)
				}
				continue
			}
			text, err := s.encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := decodeSegments(text)
			if err != nil || len(again.Segments) != len(s.Segments) {
				t.Fatalf("%s became %+v, %v", text, again, err)
			}
		}
	})
}

// sumUp gives text a checksum that fits.
func sumUp(line []byte) []byte {
	line = bytes.ReplaceAll(line, []byte("\n"), nil)
	return fmt.Appendf(bytes.Clone(line), "\n%08x\n", crcOf(line))
}

func FuzzDecodeSlot(f *testing.F) {
	b, err := encodeSlot(7, map[string][]byte{"CurrentTerm": binary.BigEndian.AppendUint64(nil, 9)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		slot := make([]byte, slotSize)
		copy(slot, data)
		sealSlot(slot)
		for _, b := range [][]byte{data, slot} {
			seq, kv, err := decodeSlot(b)
			if err != nil {
				if !errors.Is(err, errdefs.ErrCorrupt) {
					t.Fatal(err)
				}
				continue
			}
			again, err := encodeSlot(seq, kv)
			if err != nil {
				t.Fatal(err)
			}
			if n, same, err := decodeSlot(again); err != nil || n != seq || !reflect.DeepEqual(same, kv) {
				t.Fatalf("%v became %v, %v", kv, same, err)
			}
		}
	})
}

func FuzzScanSegment(f *testing.F) {
	key := segmentKey{nonce: 1, base: 5, id: 2}
	f.Add(sampleSegment(key), uint16(0))
	f.Add(sampleSegment(key), uint16(60))
	f.Fuzz(func(t *testing.T, data []byte, lie uint16) {
		for _, b := range [][]byte{data, resealed(data, key, int(lie))} {
			s, err := scanSegment(bytes.NewReader(b), int64(len(b)), key)
			if err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
				t.Fatal(err)
			}
			if s.end > int64(len(b)) || len(s.offsets) > len(b)/entryHead {
				t.Fatalf("%d bytes hold %d entries up to %d", len(b), len(s.offsets), s.end)
			}
		}
	})
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, diskfile.Castagnoli) }

func sealSlot(b []byte) { binary.LittleEndian.PutUint32(b[slotSize-4:], crcOf(b[:slotSize-4])) }

// sampleSegment is a segment of two batches.
func sampleSegment(key segmentKey) []byte {
	b := key.appendHead(nil)
	prev := binary.LittleEndian.Uint32(b[segmentHead-4:])
	one := []types.LogEntry{{Index: key.base, Data: []byte("one")}, {Index: key.base + 1, Data: []byte("two")}}
	start := len(b)
	b = key.appendBatch(b, prev, one, func(int) {})
	return key.appendBatch(b, batchSum(b[start:]), []types.LogEntry{{Index: key.base + 2, Data: []byte("three")}}, func(int) {})
}

// resealed gives bytes a segment's head, and the first batch a head that fits
// whatever it says.
func resealed(data []byte, key segmentKey, lie int) []byte {
	b := append(key.appendHead(nil), data...)
	if len(b) < segmentHead+batchHead {
		return b
	}
	h := b[segmentHead : segmentHead+batchHead]
	binary.LittleEndian.PutUint32(h, batchMagic)
	binary.LittleEndian.PutUint64(h[8:], key.base)
	binary.LittleEndian.PutUint32(h[16:], uint32(lie)&^7)
	binary.LittleEndian.PutUint32(h[24:], binary.LittleEndian.Uint32(b[segmentHead-4:]))
	binary.LittleEndian.PutUint32(h[28:], crc32.Update(key.seed(), diskfile.Castagnoli, h[:28]))
	return b
}
