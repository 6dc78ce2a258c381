package queue

import "container/heap"

// entries is a heap of items ordered by less. Each item has its index in the heap, so that any item can be removed.
type entries struct {
	items []*Item
	less  func(a, b *Item) bool
}

func (e *entries) Len() int           { return len(e.items) }
func (e *entries) Less(i, j int) bool { return e.less(e.items[i], e.items[j]) }

func (e *entries) Swap(i, j int) {
	e.items[i], e.items[j] = e.items[j], e.items[i]
	e.items[i].place, e.items[j].place = i, j
}

// Push implements heap.Interface; use add.
func (e *entries) Push(x any) {
	item := x.(*Item)
	item.place = len(e.items)
	e.items = append(e.items, item)
}

// Pop implements heap.Interface; use take.
func (e *entries) Pop() any {
	last := len(e.items) - 1
	item := e.items[last]
	e.items[last] = nil
	e.items = e.items[:last]
	return item
}

func (e *entries) add(item *Item)    { heap.Push(e, item) }
func (e *entries) take() *Item       { return heap.Pop(e).(*Item) }
func (e *entries) remove(item *Item) { heap.Remove(e, item.place) }

func (e *entries) first() *Item {
	if len(e.items) == 0 {
		return nil
	}
	return e.items[0]
}

// byPriority is the order of active pods.
func byPriority(a, b *Item) bool {
	if a.Pod.Priority != b.Pod.Priority {
		return a.Pod.Priority > b.Pod.Priority
	}
	if !a.since.Equal(b.since) {
		return a.since.Before(b.since)
	}
	return a.serial < b.serial
}

// byDue is the order of pods that wait for the end of their back-off.
func byDue(a, b *Item) bool {
	if !a.due.Equal(b.due) {
		return a.due.Before(b.due)
	}
	return byPriority(a, b)
}
