package raftstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
)

// entryVersion is the format of log entries this code writes. It reads this
// one and every older one. The format is append-only: a new field means a new
// kind or a new version, never a new meaning of old bytes.
const entryVersion = 1

// Limits every decoder holds to, so that damaged input cannot exhaust the
// stack or memory.
const (
	maxTxnDepth  = 16
	minOpBytes   = 3
	minCmpBytes  = 5
	maxFrameSize = 1 << 30
	// maxLeaseMillis is ten years: room enough, and no overflow as a Duration.
	maxLeaseMillis = 10 * 365 * 24 * 3600 * 1000
)

type commandKind uint8

// The kinds of log entries. Numbers are for ever.
const (
	cmdTxn         commandKind = 1
	cmdLeaseGrant  commandKind = 2
	cmdLeaseRevoke commandKind = 3
	cmdCompact     commandKind = 4
	// cmdTerm changes nothing. A new leader writes it first: who has applied it
	// has applied everything of earlier terms.
	cmdTerm commandKind = 5

	lastKind = cmdTerm
)

// command is one decoded log entry.
type command struct {
	kind     commandKind
	txn      Txn     // cmdTxn
	lease    LeaseID // cmdLeaseGrant, cmdLeaseRevoke
	ttl      int64   // cmdLeaseGrant, milliseconds
	revision int64   // cmdCompact
	raw      int     // length of the memory it was decoded from
}

// Flags of an encoded Op.
const (
	flagPrevKV = 1 << iota
	flagIgnoreValue
	flagIgnoreLease
	flagKeysOnly
	flagCountOnly
)

// scratch are buffers to encode in. The entry itself is cut to size, because
// the values in it stay in memory as long as they are current.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// encode returns the log entry of c.
func (c *command) encode() []byte {
	buf := scratch.Get().(*[]byte)
	*buf = c.append((*buf)[:0])
	entry := bytes.Clone(*buf)
	if cap(*buf) <= 1<<20 {
		scratch.Put(buf)
	}
	return entry
}

func (c *command) append(b []byte) []byte {
	b = append(b, entryVersion, byte(c.kind))
	switch c.kind {
	case cmdTxn:
		b = appendTxn(b, &c.txn)
	case cmdLeaseGrant:
		b = binary.AppendVarint(b, int64(c.lease))
		b = binary.AppendUvarint(b, uint64(c.ttl))
	case cmdLeaseRevoke:
		b = binary.AppendVarint(b, int64(c.lease))
	case cmdCompact:
		b = binary.AppendVarint(b, c.revision)
	}
	return b
}

// decodeCommand reads a log entry. Values of the command are sub-slices of
// data, which therefore must never be written to again.
func decodeCommand(data []byte) (*command, error) {
	p := parser{b: data}
	if v := p.byte(); p.err == nil && v != entryVersion {
		return nil, fmt.Errorf("%w: log entry has format %d, this program knows up to %d", ErrNewerVersion, v, entryVersion)
	}
	c := &command{kind: commandKind(p.byte()), raw: len(data)}
	switch {
	case p.err != nil:
	case c.kind == cmdTxn:
		c.txn = p.txn(0)
	case c.kind == cmdLeaseGrant:
		c.lease = LeaseID(p.varint())
		ms := p.uvarint()
		if ms > maxLeaseMillis {
			p.fail(fmt.Errorf("%w: lease of %d ms", ErrCorrupt, ms))
		}
		c.ttl = int64(ms)
	case c.kind == cmdLeaseRevoke:
		c.lease = LeaseID(p.varint())
	case c.kind == cmdCompact:
		c.revision = p.varint()
	case c.kind == cmdTerm:
	default:
		return nil, fmt.Errorf("%w: log entry has kind %d", ErrNewerVersion, c.kind)
	}
	if p.err == nil && len(p.b) > 0 {
		p.fail(fmt.Errorf("%w: %d bytes after the log entry", ErrCorrupt, len(p.b)))
	}
	if p.err != nil {
		return nil, p.err
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
			b = appendBytes(b, c.Value)
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
		b = appendBytes(b, op.Value)
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

func (p *parser) txn(depth int) Txn {
	if depth > maxTxnDepth {
		p.fail(fmt.Errorf("%w: transactions nested more than %d deep", ErrCorrupt, maxTxnDepth))
		return Txn{}
	}
	var t Txn
	if n := p.count(minCmpBytes); n > 0 {
		t.Compares = make([]Compare, n)
		for i := range t.Compares {
			t.Compares[i] = p.compare()
		}
	}
	t.Success = p.ops(depth)
	t.Failure = p.ops(depth)
	return t
}

func (p *parser) compare() Compare {
	c := Compare{Key: p.string(), RangeEnd: p.string()}
	c.Target, c.Result = CompareTarget(p.byte()), CompareResult(p.byte())
	if c.Target > CompareLease || c.Result > Greater {
		p.fail(fmt.Errorf("%w: compare of target %d, relation %d", ErrNewerVersion, c.Target, c.Result))
	}
	if c.Target == CompareValue {
		c.Value = p.bytes()
	} else {
		c.Int = p.varint()
	}
	return c
}

func (p *parser) ops(depth int) []Op {
	n := p.count(minOpBytes)
	if n == 0 {
		return nil
	}
	ops := make([]Op, n)
	for i := range ops {
		ops[i] = p.op(depth)
	}
	return ops
}

func (p *parser) op(depth int) Op {
	op := Op{Type: OpType(p.byte())}
	f := p.byte()
	if f >= flagCountOnly<<1 {
		p.fail(fmt.Errorf("%w: operation flags %#x", ErrNewerVersion, f))
	}
	op.PrevKV, op.IgnoreValue, op.IgnoreLease = f&flagPrevKV != 0, f&flagIgnoreValue != 0, f&flagIgnoreLease != 0
	op.KeysOnly, op.CountOnly = f&flagKeysOnly != 0, f&flagCountOnly != 0
	switch op.Type {
	case OpTxn:
		t := p.txn(depth + 1)
		op.Txn = &t
	case OpPut:
		op.Key, op.Value, op.Lease = p.string(), p.bytes(), LeaseID(p.varint())
	case OpDelete:
		op.Key, op.RangeEnd = p.string(), p.string()
	case OpRange:
		op.Key, op.RangeEnd, op.Limit = p.string(), p.string(), p.varint()
	default:
		p.fail(fmt.Errorf("%w: operation of type %d", ErrNewerVersion, op.Type))
	}
	return op
}
