package fastread

import "sync"

// Pools of the slices in which long lists are put together. A slice in a pool holds no pointers.
var (
	itemSlices   lent[item]
	wantedSlices lent[rendering]
	byteSlices   lent[[]byte]
)

// longest is the capacity, in elements, beyond which a slice is not kept.
const longest = 64 << 10

// lent is a pool of slices.
type lent[E any] struct{ pool sync.Pool }

// get returns an empty slice.
func (l *lent[E]) get() []E {
	if p, ok := l.pool.Get().(*[]E); ok {
		return *p
	}
	return nil
}

// put returns a slice to the pool.
func (l *lent[E]) put(s []E) {
	if cap(s) == 0 || cap(s) > longest {
		return
	}
	clear(s)
	s = s[:0]
	l.pool.Put(&s)
}
