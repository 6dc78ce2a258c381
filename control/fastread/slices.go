package fastread

import "sync"

// The slices that long lists are put together in. What they point to they let go of.
var (
	itemSlices   lent[item]
	wantedSlices lent[rendering]
	byteSlices   lent[[]byte]
)

// longest is how many elements a slice has at most that is kept.
const longest = 64 << 10

// lent are slices that are used again.
type lent[E any] struct{ pool sync.Pool }

// get returns an empty slice.
func (l *lent[E]) get() []E {
	if p, ok := l.pool.Get().(*[]E); ok {
		return *p
	}
	return nil
}

// put takes a slice back.
func (l *lent[E]) put(s []E) {
	if cap(s) == 0 || cap(s) > longest {
		return
	}
	clear(s)
	s = s[:0]
	l.pool.Put(&s)
}
