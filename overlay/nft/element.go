package nft

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"
)

// element is one of a set or map: with a value, or a verdict, or neither.
type element struct {
	key, value []byte
	chain      string
	verdict    int32 // NFT_GOTO or NFT_JUMP to chain
}

// slab hands out short slices of bytes from large ones: a table has some 100,000 of them.
type slab struct{ free []byte }

const slabSize = 64 << 10

// room returns an empty slice that n bytes can be appended to.
func (s *slab) room(n int) []byte {
	if len(s.free) < n {
		s.free = make([]byte, max(slabSize, n))
	}
	out := s.free[:0:n]
	s.free = s.free[n:]
	return out
}

// keep copies b; nil stays nil.
func (s *slab) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append(s.room(len(b)), b...)
}

// changes are elements of one set to delete and then to add; a key in both has its value replaced.
type changes struct{ del, add []element }

// valued notes a change of a value, nil where there is none.
func (c *changes) valued(key, old, now []byte) {
	if bytes.Equal(old, now) {
		return
	}
	if old != nil {
		c.del = append(c.del, element{key: key})
	}
	if now != nil {
		c.add = append(c.add, element{key: key, value: now})
	}
}

func (c *changes) guarded(key []byte, old, now string) {
	if old == now {
		return
	}
	if old != "" {
		c.del = append(c.del, element{key: key, chain: old, verdict: unix.NFT_JUMP})
	}
	if now != "" {
		c.add = append(c.add, element{key: key, chain: now, verdict: unix.NFT_JUMP})
	}
}

func (c *changes) present(key []byte, was, is bool) {
	if was && !is {
		c.del = append(c.del, element{key: key})
	}
	if is && !was {
		c.add = append(c.add, element{key: key})
	}
}

// write adds messages for the changes. What is replaced stays in one transaction.
func (w *writer) write(set string, c changes) {
	if len(c.del) == 0 || len(c.add) == 0 || len(c.del)+len(c.add) < 500 {
		w.elements(set, unix.NFT_MSG_DELSETELEM, c.del)
		w.elements(set, unix.NFT_MSG_NEWSETELEM, c.add)
		w.cut()
		return
	}
	gone := make(map[string]element, len(c.del))
	for _, e := range c.del {
		gone[string(e.key)] = e
	}
	const most = 400 // fit a message
	var both changes
	for _, e := range c.add {
		if old, ok := gone[string(e.key)]; ok {
			both.del = append(both.del, old)
			delete(gone, string(e.key))
		}
		if both.add = append(both.add, e); len(both.add) == most {
			w.elements(set, unix.NFT_MSG_DELSETELEM, both.del)
			w.elements(set, unix.NFT_MSG_NEWSETELEM, both.add)
			w.cut()
			both = changes{}
		}
	}
	for _, e := range gone {
		both.del = append(both.del, e)
	}
	w.elements(set, unix.NFT_MSG_DELSETELEM, both.del)
	w.elements(set, unix.NFT_MSG_NEWSETELEM, both.add)
	w.cut()
}

// elementGuess is how many bytes most elements come to.
const elementGuess = 48

// elements adds messages of one kind, as many as it takes.
func (w *writer) elements(set string, kind uint16, list []element) {
	var flags uint16
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	w.buf = slices.Grow(w.buf, len(list)*elementGuess)
	for len(list) > 0 {
		w.message(kind, flags)
		w.text(unix.NFTA_SET_ELEM_LIST_TABLE, Name)
		w.text(unix.NFTA_SET_ELEM_LIST_SET, set)
		at := w.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for len(list) > 0 && len(w.buf)-at < elementsLimit {
			w.element(&list[0])
			list = list[1:]
		}
		w.unnest(at)
	}
}

func (w *wire) element(e *element) {
	at := w.nest(unix.NFTA_LIST_ELEM)
	key := w.nest(unix.NFTA_SET_ELEM_KEY)
	w.attr(unix.NFTA_DATA_VALUE, e.key)
	w.unnest(key)
	if e.value != nil || e.chain != "" {
		data := w.nest(unix.NFTA_SET_ELEM_DATA)
		if e.value != nil {
			w.attr(unix.NFTA_DATA_VALUE, e.value)
		} else {
			verdict := w.nest(unix.NFTA_DATA_VERDICT)
			w.u32(unix.NFTA_VERDICT_CODE, uint32(e.verdict))
			w.text(unix.NFTA_VERDICT_CHAIN, e.chain)
			w.unnest(verdict)
		}
		w.unnest(data)
	}
	w.unnest(at)
}

// parseElement reads what the kernel lists into memory of its own.
func parseElement(data []byte, mem *slab) element {
	var e element
	attributes(data, func(kind uint16, value []byte) bool {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = mem.keep(find(value, unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_DATA:
			e.value = mem.keep(find(value, unix.NFTA_DATA_VALUE))
			if v := find(value, unix.NFTA_DATA_VERDICT); v != nil {
				e.verdict, e.chain = int32(findU32(v, unix.NFTA_VERDICT_CODE)), findText(v, unix.NFTA_VERDICT_CHAIN)
			}
		}
		return true
	})
	return e
}
