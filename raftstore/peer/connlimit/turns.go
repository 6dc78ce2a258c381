package connlimit

import "slices"

// Turns are places of which there are few. Who finds none free waits; groups are served one after the other, and within a
// group the first is served first.
type Turns[K, W comparable] struct {
	free    int
	waiting map[K][]W
	order   []K // of groups that wait: the first is served next
}

// NewTurns makes n places.
func NewTurns[K, W comparable](n int) *Turns[K, W] {
	return &Turns[K, W]{free: n, waiting: map[K][]W{}}
}

// Take gives w a place at once, or has it wait.
func (t *Turns[K, W]) Take(key K, w W) bool {
	if t.free > 0 {
		t.free--
		return true
	}
	if len(t.waiting[key]) == 0 {
		t.order = append(t.order, key)
	}
	t.waiting[key] = append(t.waiting[key], w)
	return false
}

// Done frees a place. The one that is returned has it now; ok is false when nobody waits.
func (t *Turns[K, W]) Done() (next W, ok bool) {
	if len(t.order) == 0 {
		t.free++
		return next, false
	}
	key := t.order[0]
	t.order = t.order[1:]
	queue := t.waiting[key]
	next, queue = queue[0], queue[1:]
	if len(queue) == 0 {
		delete(t.waiting, key)
		return next, true
	}
	t.waiting[key] = queue
	t.order = append(t.order, key)
	return next, true
}

// Drop has w wait no longer; false when it did not wait.
func (t *Turns[K, W]) Drop(key K, w W) bool {
	queue := t.waiting[key]
	i := slices.Index(queue, w)
	if i < 0 {
		return false
	}
	if len(queue) > 1 {
		t.waiting[key] = slices.Delete(queue, i, i+1)
		return true
	}
	delete(t.waiting, key)
	at := slices.Index(t.order, key)
	t.order = slices.Delete(t.order, at, at+1)
	return true
}

// Waiting returns how many wait.
func (t *Turns[K, W]) Waiting() (n int) {
	for _, q := range t.waiting {
		n += len(q)
	}
	return n
}
