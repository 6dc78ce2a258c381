package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
)

// scanned is the content of a segment file.
type scanned struct {
	offsets []int64 // of the entries
	end     int64   // offset behind the last sound batch
	chain   uint32  // CRC of that batch, or of the file's head
	ragged  bool    // there are bytes behind end that are no batch
}

// scanSegment reads all of a segment, up to the first batch that is not sound. It returns ErrCorrupt when a sound batch follows that one.
func scanSegment(r io.ReaderAt, size int64, key segmentKey) (scanned, error) {
	var s scanned
	head := key.appendHead(nil)
	got := make([]byte, min(segmentHead, max(size, 0)))
	if _, err := r.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) {
		return s, err
	}
	next := key.base
	if bytes.Equal(got, head) {
		s.end, s.chain = segmentHead, binary.LittleEndian.Uint32(head[segmentHead-4:])
		var body []byte
		for {
			h, b, err := readBatch(r, s.end, size, key.seed(), body)
			if err != nil {
				return s, err
			}
			if h == nil || h.prev != s.chain || h.first != next {
				break
			}
			body = b
			at, ok := h.split(b)
			if !ok {
				break
			}
			for _, o := range at {
				s.offsets = append(s.offsets, s.end+batchHead+int64(o))
			}
			next, s.chain = next+uint64(h.count), h.crc
			s.end += batchHead + int64(h.bytes)
		}
	}
	return s, s.checkTail(r, size, key.seed(), next)
}

// batchHeader is the decoded head of a batch.
type batchHeader struct {
	count, bytes, sum, prev, crc uint32
	first                        uint64
}

// parseBatchHeader returns nil when b is not the head of a batch of this segment.
func parseBatchHeader(b []byte, seed uint32) *batchHeader {
	h := &batchHeader{
		count: binary.LittleEndian.Uint32(b[4:]), first: binary.LittleEndian.Uint64(b[8:]),
		bytes: binary.LittleEndian.Uint32(b[16:]), sum: binary.LittleEndian.Uint32(b[20:]),
		prev: binary.LittleEndian.Uint32(b[24:]), crc: binary.LittleEndian.Uint32(b[28:]),
	}
	if binary.LittleEndian.Uint32(b) != batchMagic || h.count == 0 || h.bytes%8 != 0 || uint64(h.count)*entryHead > uint64(h.bytes) ||
		crc32.Update(seed, diskfile.Castagnoli, b[:28]) != h.crc {
		return nil
	}
	return h
}

// readBatch reads the batch at an offset into buf or a larger slice. The head is nil when there is no batch, or when its length exceeds the
// file.
func readBatch(r io.ReaderAt, at, size int64, seed uint32, buf []byte) (*batchHeader, []byte, error) {
	var b [batchHead]byte
	if size-at < batchHead {
		return nil, buf, nil
	}
	if _, err := r.ReadAt(b[:], at); err != nil && !errors.Is(err, io.EOF) {
		return nil, buf, err
	}
	h := parseBatchHeader(b[:], seed)
	if h == nil || int64(h.bytes) > size-at-batchHead {
		return nil, buf, nil
	}
	if cap(buf) < int(h.bytes) {
		buf = make([]byte, h.bytes)
	}
	buf = buf[:h.bytes]
	if _, err := r.ReadAt(buf, at+batchHead); err != nil && !errors.Is(err, io.EOF) {
		return nil, buf, err
	}
	return h, buf, nil
}

// split checks the entries of a batch and returns the offset of each in b.
func (h *batchHeader) split(b []byte) (at []int, ok bool) {
	sum, o := uint32(0), 0
	for i := range uint64(h.count) {
		if len(b)-o < entryHead {
			return nil, false
		}
		n := int(binary.LittleEndian.Uint32(b[o:]))
		if n > len(b)-o-entryHead || entrySum(h.first+i, b[o+entryHead:o+entryHead+n]) != binary.LittleEndian.Uint32(b[o+4:]) {
			return nil, false
		}
		sum = crc32.Update(sum, diskfile.Castagnoli, b[o:o+entryHead])
		at = append(at, o)
		o += entryHead + n
	}
	return at, sum == h.sum && len(b)-o < 8
}

// checkTail reads the bytes behind the end. They are zeros or a torn append; a later batch among them means damage, which is an error.
func (s *scanned) checkTail(r io.ReaderAt, size int64, seed uint32, next uint64) error {
	const step = 1 << 20
	buf := make([]byte, step+batchHead)
	for at := s.end; at < size; at += step {
		b := buf[:min(int64(len(buf)), size-at)]
		n, err := r.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		b = b[:n]
		if isZero(b) {
			continue
		}
		s.ragged = true
		for o := 0; o+batchHead <= len(b) && o < step; o += 8 {
			if binary.LittleEndian.Uint32(b[o:]) != batchMagic {
				continue
			}
			if h := parseBatchHeader(b[o:], seed); h != nil && h.first > next {
				return fmt.Errorf("%w: entry %d is damaged, at byte %d, and entry %d follows it", errdefs.ErrCorrupt, next, s.end, h.first)
			}
		}
	}
	return nil
}

var zeros [64 << 10]byte

func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}
