package mvcc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// ErrShort is the error for input that ends too early.
var ErrShort = fmt.Errorf("%w: input ends early", errdefs.ErrCorrupt)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// AppendBytes appends v with its length before it.
func AppendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Parser reads varint framing from a byte slice. It keeps the first error and returns zero values from then on, so callers check Err once
// at the end.
type Parser struct {
	Rest []byte
	Err  error
}

// Fail keeps err if it is the first, and ends the input.
func (p *Parser) Fail(err error) {
	if p.Err == nil {
		p.Err = err
		p.Rest = nil
	}
}

// Uvarint reads an unsigned number.
func (p *Parser) Uvarint() uint64 {
	v, n := binary.Uvarint(p.Rest)
	if n <= 0 {
		p.Fail(ErrShort)
		return 0
	}
	p.Rest = p.Rest[n:]
	return v
}

// Varint reads a signed number.
func (p *Parser) Varint() int64 {
	v, n := binary.Varint(p.Rest)
	if n <= 0 {
		p.Fail(ErrShort)
		return 0
	}
	p.Rest = p.Rest[n:]
	return v
}

// Byte reads one byte.
func (p *Parser) Byte() byte {
	if len(p.Rest) == 0 {
		p.Fail(ErrShort)
		return 0
	}
	c := p.Rest[0]
	p.Rest = p.Rest[1:]
	return c
}

// Bytes reads a length and that many bytes, as a sub-slice of the input whose capacity ends with it. It returns nil for no bytes.
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

// Count reads the number of items that follow, each at least min bytes long. Damaged input cannot make the caller allocate more items than
// it has bytes for.
func (p *Parser) Count(min int) int {
	n := p.Uvarint()
	if n > uint64(len(p.Rest)/min) {
		p.Fail(ErrShort)
		return 0
	}
	return int(n)
}

// short returns ErrShort for the end of the input, and err otherwise.
func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrShort
	}
	return err
}
