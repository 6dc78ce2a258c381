package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// errShort is what every decoder says of input that ends too early.
var errShort = fmt.Errorf("%w: input ends early", ErrCorrupt)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// parser reads varint framing from a byte slice. The first fault sticks, so
// callers check err once at the end.
type parser struct {
	b   []byte
	err error
}

func (p *parser) fail(err error) {
	if p.err == nil {
		p.err = err
		p.b = nil
	}
}

func (p *parser) uvarint() uint64 {
	v, n := binary.Uvarint(p.b)
	if n <= 0 {
		p.fail(errShort)
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.fail(errShort)
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) byte() byte {
	if len(p.b) == 0 {
		p.fail(errShort)
		return 0
	}
	c := p.b[0]
	p.b = p.b[1:]
	return c
}

// bytes returns a sub-slice of the input, capped so that an append to it
// cannot reach what follows. Nil stands for "empty".
func (p *parser) bytes() []byte {
	n := p.uvarint()
	if n > uint64(len(p.b)) {
		p.fail(errShort)
		return nil
	}
	if n == 0 {
		return nil
	}
	v := p.b[:n:n]
	p.b = p.b[n:]
	return v
}

func (p *parser) string() string { return string(p.bytes()) }

// count reads a number of items that follow, each at least min bytes long, so
// that damaged input cannot ask for more memory than it has bytes.
func (p *parser) count(min int) int {
	n := p.uvarint()
	if n > uint64(len(p.b)/min) {
		p.fail(errShort)
		return 0
	}
	return int(n)
}

// streamReader is what the snapshot decoder reads from.
type streamReader interface {
	io.Reader
	io.ByteReader
}

// readFrame reads one length-prefixed frame of at most max bytes.
func readFrame(r streamReader, max uint64) ([]byte, error) {
	n, err := readUvarint(r)
	if err != nil {
		return nil, err
	}
	if n > max {
		return nil, fmt.Errorf("%w: frame of %d bytes, at most %d expected", ErrCorrupt, n, max)
	}
	// Grow with what really arrives: the length itself may be damaged.
	const step = 1 << 20
	b := make([]byte, 0, min(n, step))
	for uint64(len(b)) < n {
		have := len(b)
		b = append(b, make([]byte, min(n-uint64(have), step))...)
		if _, err := io.ReadFull(r, b[have:]); err != nil {
			return nil, short(err)
		}
	}
	return b, nil
}

// readUvarint is binary.ReadUvarint with our errors.
func readUvarint(r io.ByteReader) (v uint64, err error) {
	for shift := 0; shift < 64; shift += 7 {
		c, err := r.ReadByte()
		if err != nil {
			return 0, short(err)
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%w: number of more than 64 bits", ErrCorrupt)
}

func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errShort
	}
	return err
}
