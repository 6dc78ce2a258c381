package mvcc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// errShort is what every decoder says of input that ends too early.
var ErrShort = fmt.Errorf("%w: input ends early", errdefs.ErrCorrupt)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func AppendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Parser reads varint framing from a byte slice. The first fault sticks, so
// callers check err once at the end.
type Parser struct {
	Rest []byte
	Err  error
}

func (p *Parser) Fail(err error) {
	if p.Err == nil {
		p.Err = err
		p.Rest = nil
	}
}

func (p *Parser) Uvarint() uint64 {
	v, n := binary.Uvarint(p.Rest)
	if n <= 0 {
		p.Fail(ErrShort)
		return 0
	}
	p.Rest = p.Rest[n:]
	return v
}

func (p *Parser) Varint() int64 {
	v, n := binary.Varint(p.Rest)
	if n <= 0 {
		p.Fail(ErrShort)
		return 0
	}
	p.Rest = p.Rest[n:]
	return v
}

func (p *Parser) Byte() byte {
	if len(p.Rest) == 0 {
		p.Fail(ErrShort)
		return 0
	}
	c := p.Rest[0]
	p.Rest = p.Rest[1:]
	return c
}

// Bytes returns a sub-slice of the input, capped so that an append to it
// cannot reach what follows. Nil stands for "empty".
func (p *Parser) Bytes() []byte {
	n := p.Uvarint()
	if n > uint64(len(p.Rest)) {
		p.Fail(ErrShort)
		return nil
	}
	if n == 0 {
		return nil
	}
	v := p.Rest[:n:n]
	p.Rest = p.Rest[n:]
	return v
}

func (p *Parser) string() string { return string(p.Bytes()) }

// Count reads a number of items that follow, each at least min bytes long, so
// that damaged input cannot ask for more memory than it has bytes.
func (p *Parser) Count(min int) int {
	n := p.Uvarint()
	if n > uint64(len(p.Rest)/min) {
		p.Fail(ErrShort)
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
		return nil, fmt.Errorf("%w: frame of %d bytes, at most %d expected", errdefs.ErrCorrupt, n, max)
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
	return 0, fmt.Errorf("%w: number of more than 64 bits", errdefs.ErrCorrupt)
}

func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrShort
	}
	return err
}
