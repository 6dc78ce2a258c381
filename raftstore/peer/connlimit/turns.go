package connlimit

import "slices"

// Turns is a limited number of places. A member that finds no free place waits. Groups take turns, and within a group the first that waits
// is first.
type Turns[K, W comparable] struct {
	free    int
	waiting map[K][]W
	order   []K // of groups that wait: the first is served next
}

// NewTurns returns Turns with n places.
func NewTurns[K, W comparable](n int) *Turns[K, W] {
	return &Turns[K, W]{free: n, waiting: map[K][]W{}}
}

// Take gives w a free place and returns true, or makes w wait and returns false.
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

// Done frees a place and gives it to next; ok is false when no member waits.
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

// Drop takes w out of the queue. It returns false when w did not wait.
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

// Waiting returns how many members wait.
func (t *Turns[K, W]) Waiting() (n int) {
	for _, q := range t.waiting {
		n += len(q)
	}
	return n
}
