package mvcc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// CommandVersion is the format of the commands that this program writes. It reads this format and every older one. The format is
// append-only: a new field means a new kind or a new version, never a new meaning of old bytes.
const CommandVersion = 1

// Limits of the decoders, so that damaged input cannot exhaust the stack or memory.
const (
	maxTxnDepth  = 16
	minOpBytes   = 3
	minCmpBytes  = 5
	maxFrameSize = 1 << 30
	// maxLeaseMillis is ten years, which does not overflow as a Duration.
	maxLeaseMillis = 10 * 365 * 24 * 3600 * 1000
)

// Kind is the kind of a command.
type Kind uint8

// The kinds of commands. The numbers are in logs and snapshots: they never change.
const (
	KindTxn         Kind = 1
	KindLeaseGrant  Kind = 2
	KindLeaseRevoke Kind = 3
	KindCompact     Kind = 4
	// KindTerm changes nothing. A new leader writes it first: a server that has applied it has applied everything of earlier terms.
	KindTerm Kind = 5

	LastKind = KindTerm
)

// Command is one decoded command.
type Command struct {
	Kind     Kind
	Txn      Txn     // KindTxn
	Lease    LeaseID // KindLeaseGrant, KindLeaseRevoke
	TTL      int64   // KindLeaseGrant, milliseconds
	Revision int64   // KindCompact
	Raw      int     // bytes of the memory that the values share with the entry it was decoded from
}

// Flags of an encoded Op.
const (
	flagPrevKV = 1 << iota
	flagIgnoreValue
	flagIgnoreLease
	flagKeysOnly
	flagCountOnly
)

// scratch are buffers to encode in. The result is copied to its exact size, because the values in it stay in memory as long as they are
// current.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// Encode returns the bytes of c.
func (c *Command) Encode() []byte {
	buf := scratch.Get().(*[]byte)
	*buf = c.append((*buf)[:0])
	entry := bytes.Clone(*buf)
	if cap(*buf) <= 1<<20 {
		scratch.Put(buf)
	}
	return entry
}

func (c *Command) append(b []byte) []byte {
	b = append(b, CommandVersion, byte(c.Kind))
	switch c.Kind {
	case KindTxn:
		b = appendTxn(b, &c.Txn)
	case KindLeaseGrant:
		b = binary.AppendVarint(b, int64(c.Lease))
		b = binary.AppendUvarint(b, uint64(c.TTL))
	case KindLeaseRevoke:
		b = binary.AppendVarint(b, int64(c.Lease))
	case KindCompact:
		b = binary.AppendVarint(b, c.Revision)
	}
	return b
}

// DecodeCommand reads a command. Its values are sub-slices of data, which must never be written to again.
func DecodeCommand(data []byte) (*Command, error) {
	p := Parser{Rest: data}
	if v := p.Byte(); p.Err == nil && v != CommandVersion {
		return nil, fmt.Errorf("%w: log entry has format %d, this program knows up to %d", errdefs.ErrNewerVersion, v, CommandVersion)
	}
	c := &Command{Kind: Kind(p.Byte()), Raw: len(data)}
	switch {
	case p.Err != nil:
	case c.Kind == KindTxn:
		c.Txn = p.txn(0)
	case c.Kind == KindLeaseGrant:
		c.Lease = LeaseID(p.Varint())
		ms := p.Uvarint()
		if ms > maxLeaseMillis {
			p.Fail(fmt.Errorf("%w: lease of %d ms", errdefs.ErrCorrupt, ms))
		}
		c.TTL = int64(ms)
	case c.Kind == KindLeaseRevoke:
		c.Lease = LeaseID(p.Varint())
	case c.Kind == KindCompact:
		c.Revision = p.Varint()
	case c.Kind == KindTerm:
	default:
		return nil, fmt.Errorf("%w: log entry has kind %d", errdefs.ErrNewerVersion, c.Kind)
	}
	if p.Err == nil && len(p.Rest) > 0 {
		p.Fail(fmt.Errorf("%w: %d bytes after the log entry", errdefs.ErrCorrupt, len(p.Rest)))
	}
	if p.Err != nil {
		return nil, p.Err
	}
	return c, nil
}

func appendTxn(b []byte, t *Txn) []byte {
	b = binary.AppendUvarint(b, uint64(len(t.Compares)))
	for i := range t.Compares {
		c := &t.Compares[i]
		b = appendString(appendString(b, c.Key), c.RangeEnd)
		b = append(b, byte(c.Target), byte(c.Result))
		if c.Target == CompareValue {
			b = AppendBytes(b, c.Value)
		} else {
			b = binary.AppendVarint(b, c.Int)
		}
	}
	for _, ops := range [2][]Op{t.Success, t.Failure} {
		b = binary.AppendUvarint(b, uint64(len(ops)))
		for i := range ops {
			b = appendOp(b, &ops[i])
		}
	}
	return b
}

func appendOp(b []byte, op *Op) []byte {
	b = append(b, byte(op.Type), op.flags())
	if op.Type == OpTxn {
		return appendTxn(b, op.Txn)
	}
	b = appendString(b, op.Key)
	switch op.Type {
	case OpPut:
		b = AppendBytes(b, op.Value)
		b = binary.AppendVarint(b, int64(op.Lease))
	case OpDelete:
		b = appendString(b, op.RangeEnd)
	case OpRange:
		b = appendString(b, op.RangeEnd)
		b = binary.AppendVarint(b, op.Limit)
	}
	return b
}

func (op *Op) flags() byte {
	var f byte
	for i, on := range [...]bool{op.PrevKV, op.IgnoreValue, op.IgnoreLease, op.KeysOnly, op.CountOnly} {
		if on {
			f |= 1 << i
		}
	}
	return f
}

func (p *Parser) txn(depth int) Txn {
	if depth > maxTxnDepth {
		p.Fail(fmt.Errorf("%w: transactions nested more than %d deep", errdefs.ErrCorrupt, maxTxnDepth))
		return Txn{}
	}
	var t Txn
	if n := p.Count(minCmpBytes); n > 0 {
		t.Compares = make([]Compare, n)
		for i := range t.Compares {
			t.Compares[i] = p.compare()
		}
	}
	t.Success = p.ops(depth)
	t.Failure = p.ops(depth)
	return t
}

func (p *Parser) compare() Compare {
	c := Compare{Key: p.string(), RangeEnd: p.string()}
	c.Target, c.Result = CompareTarget(p.Byte()), CompareResult(p.Byte())
	if c.Target > CompareLease || c.Result > Greater {
		p.Fail(fmt.Errorf("%w: compare of target %d, relation %d", errdefs.ErrNewerVersion, c.Target, c.Result))
	}
	if c.Target == CompareValue {
		c.Value = p.Bytes()
	} else {
		c.Int = p.Varint()
	}
	return c
}

func (p *Parser) ops(depth int) []Op {
	n := p.Count(minOpBytes)
	if n == 0 {
		return nil
	}
	ops := make([]Op, n)
	for i := range ops {
		ops[i] = p.op(depth)
	}
	return ops
}

func (p *Parser) op(depth int) Op {
	op := Op{Type: OpType(p.Byte())}
	f := p.Byte()
	if f >= flagCountOnly<<1 {
		p.Fail(fmt.Errorf("%w: operation flags %#x", errdefs.ErrNewerVersion, f))
	}
	op.PrevKV, op.IgnoreValue, op.IgnoreLease = f&flagPrevKV != 0, f&flagIgnoreValue != 0, f&flagIgnoreLease != 0
	op.KeysOnly, op.CountOnly = f&flagKeysOnly != 0, f&flagCountOnly != 0
	switch op.Type {
	case OpTxn:
		t := p.txn(depth + 1)
		op.Txn = &t
	case OpPut:
		op.Key, op.Value, op.Lease = p.string(), p.Bytes(), LeaseID(p.Varint())
	case OpDelete:
		op.Key, op.RangeEnd = p.string(), p.string()
	case OpRange:
		op.Key, op.RangeEnd, op.Limit = p.string(), p.string(), p.Varint()
	default:
		p.Fail(fmt.Errorf("%w: operation of type %d", errdefs.ErrNewerVersion, op.Type))
	}
	return op
}
