package nft

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// Element is one element of a set or map: with a value, or with a verdict, or with neither.
type Element struct {
	Key, Value []byte
	Chain      string // to which Verdict leads
	Verdict    Verdict
	// EndsRange: in a set with the flag Interval, the range ends before this key.
	EndsRange bool
	// Last is the other end of the ranges that begin with Key, in a set with the flags Interval and Concat: each part of the key
	// is a range of its own, and its last value belongs to it. Nil in other sets.
	Last []byte
}

// Verdict is what a verdict map says.
type Verdict int32

// Verdicts.
const (
	NoVerdict   Verdict = 0
	JumpVerdict Verdict = unix.NFT_JUMP
	GotoVerdict Verdict = unix.NFT_GOTO
)

// Elements are those of one set to delete and then to add; a key in both lists has its value replaced.
type Elements struct{ Delete, Add []Element }

// Value notes that the value of a key changed; nil is no element.
func (e *Elements) Value(key, old, now []byte) {
	if bytes.Equal(old, now) {
		return
	}
	if old != nil {
		e.Delete = append(e.Delete, Element{Key: key})
	}
	if now != nil {
		e.Add = append(e.Add, Element{Key: key, Value: now})
	}
}

// Jump notes that the chain changed to which a key jumps; "" is no element.
func (e *Elements) Jump(key []byte, old, now string) {
	if old == now {
		return
	}
	if old != "" {
		e.Delete = append(e.Delete, Element{Key: key, Chain: old, Verdict: JumpVerdict})
	}
	if now != "" {
		e.Add = append(e.Add, Element{Key: key, Chain: now, Verdict: JumpVerdict})
	}
}

// Member notes that a key came or went.
func (e *Elements) Member(key []byte, was, is bool) {
	if was && !is {
		e.Delete = append(e.Delete, Element{Key: key})
	}
	if is && !was {
		e.Add = append(e.Add, Element{Key: key})
	}
}

// Arena hands out short slices of bytes from large ones, because a table has some 100,000 of them. The zero value is ready.
type Arena struct {
	free []byte
	size int // of the last block
}

// Blocks double from one size to the other, so that a small change takes little.
const firstBlock, largestBlock = 512, 64 << 10

// Room returns an empty slice to which n bytes can be appended.
func (a *Arena) Room(n int) []byte {
	if len(a.free) < n {
		a.size = min(max(2*a.size, firstBlock), largestBlock)
		a.free = make([]byte, max(a.size, n))
	}
	out := a.free[:0:n]
	a.free = a.free[n:]
	return out
}

// copy returns a copy of b; nil stays nil.
func (a *Arena) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(a.Room(len(b)), b...)
}

// setElementKeyEnd is NFTA_SET_ELEM_KEY_END.
const setElementKeyEnd = 10

// element adds an element to the list of a message.
func (w *wire) element(e *Element) {
	at := w.nest(unix.NFTA_LIST_ELEM)
	key := w.nest(unix.NFTA_SET_ELEM_KEY)
	w.attr(unix.NFTA_DATA_VALUE, e.Key)
	w.unnest(key)
	if e.Last != nil {
		last := w.nest(setElementKeyEnd)
		w.attr(unix.NFTA_DATA_VALUE, e.Last)
		w.unnest(last)
	}
	if e.EndsRange {
		w.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	if e.Value != nil || e.Chain != "" {
		data := w.nest(unix.NFTA_SET_ELEM_DATA)
		if e.Value != nil {
			w.attr(unix.NFTA_DATA_VALUE, e.Value)
		} else {
			verdict := w.nest(unix.NFTA_DATA_VERDICT)
			w.u32(unix.NFTA_VERDICT_CODE, uint32(e.Verdict))
			w.text(unix.NFTA_VERDICT_CHAIN, e.Chain)
			w.unnest(verdict)
		}
		w.unnest(data)
	}
	w.unnest(at)
}

// parseElement reads one listed element into memory of the arena, because what the socket received is overwritten.
func parseElement(data []byte, mem *Arena) Element {
	var e Element
	attributes(data, func(kind uint16, value []byte) bool {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = mem.copy(find(value, unix.NFTA_DATA_VALUE))
		case setElementKeyEnd:
			e.Last = mem.copy(find(value, unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_FLAGS:
			e.EndsRange = len(value) == 4 && value[3]&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_DATA:
			e.Value = mem.copy(find(value, unix.NFTA_DATA_VALUE))
			if v := find(value, unix.NFTA_DATA_VERDICT); v != nil {
				e.Verdict, e.Chain = Verdict(findU32(v, unix.NFTA_VERDICT_CODE)), findText(v, unix.NFTA_VERDICT_CHAIN)
			}
		}
		return true
	})
	return e
}
