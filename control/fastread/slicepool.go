package fastread

import "sync"

// Pools of the slices in which long lists are put together. A slice in a pool holds no pointers.
var (
	itemSlices   slicePool[item]
	wantedSlices slicePool[rendering]
	byteSlices   slicePool[[]byte]
)

// maxPooled is the capacity, in elements, beyond which a slice is not kept.
const maxPooled = 64 << 10

// slicePool is a pool of slices.
type slicePool[E any] struct{ pool sync.Pool }

// get returns an empty slice.
func (l *slicePool[E]) get() []E {
	if p, ok := l.pool.Get().(*[]E); ok {
		return *p
	}
	return nil
}

// put returns a slice to the pool.
func (l *slicePool[E]) put(s []E) {
	if cap(s) == 0 || cap(s) > maxPooled {
		return
	}
	clear(s)
	s = s[:0]
	l.pool.Put(&s)
}
