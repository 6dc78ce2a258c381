package queue

import "github.com/balsahq/balsa/leader/scheduler/snapshot"

// Done ends an attempt that placed the pod, or found that the pod needs no node.
func (q *Queue) Done(item *Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pods[item.Pod.Object.UID] == item {
		delete(q.pods, item.Pod.Object.UID)
	}
	q.endFlight()
}

// Refused ends an attempt in which the named rules left no node. latest is the newest version of the pod.
func (q *Queue) Refused(item *Item, latest *snapshot.Pod, rules []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	missed := q.log[item.popped:]
	defer q.endFlight()
	if !q.ended(item, latest) {
		return
	}
	item.rules = rules
	q.rest(item, refused)
	for _, e := range missed {
		if q.helps(item, e) {
			q.revive(item)
			return
		}
	}
}

// Failed ends an attempt that hit an error: the pod is tried again after its back-off.
func (q *Queue) Failed(item *Item, latest *snapshot.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.endFlight()
	if q.ended(item, latest) {
		item.rules = nil
		q.rest(item, refused)
		q.revive(item)
	}
}

// Return puts a pod back whose attempt was Done and whose binding then failed: it is tried again after its back-off.
func (q *Queue) Return(item *Item, latest *snapshot.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.pods[latest.Object.UID]; ok {
		return
	}
	item.Pod, item.since = latest, q.cfg.Clock.Now()
	item.rules = nil
	q.pods[latest.Object.UID] = item
	q.revive(item)
}

// ended updates the item of a pod whose attempt has ended. It returns false if the pod was deleted meanwhile.
func (q *Queue) ended(item *Item, latest *snapshot.Pod) bool {
	if q.pods[item.Pod.Object.UID] != item {
		return false
	}
	item.Pod = latest
	item.since = q.cfg.Clock.Now()
	return true
}

// endFlight counts a pod out of flight and clears the log when no pod is in flight.
func (q *Queue) endFlight() {
	if q.inFlight--; q.inFlight == 0 {
		clear(q.log)
		q.log = q.log[:0]
	}
}
