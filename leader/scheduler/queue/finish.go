package queue

import "github.com/balsahq/balsa/leader/scheduler/snapshot"

// Done ends an attempt that placed the pod, or found that it needs no placing.
func (q *Queue) Done(item *Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pods[item.Pod.Object.UID] == item {
		delete(q.pods, item.Pod.Object.UID)
	}
	q.land()
}

// Refused ends an attempt in which the named rules left no node. latest is the newest version of the pod.
func (q *Queue) Refused(item *Item, latest *snapshot.Pod, rules []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	missed := q.log[item.popped:]
	defer q.land()
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
	defer q.land()
	if q.ended(item, latest) {
		item.rules = nil
		q.rest(item, refused)
		q.revive(item)
	}
}

// Return takes back a pod whose attempt was Done but whose binding then failed: it is tried again after its back-off.
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

// ended takes a pod out of flight; false if it was deleted meanwhile.
func (q *Queue) ended(item *Item, latest *snapshot.Pod) bool {
	if q.pods[item.Pod.Object.UID] != item {
		return false
	}
	item.Pod = latest
	item.since = q.cfg.Clock.Now()
	return true
}

// land forgets the log when nobody needs it.
func (q *Queue) land() {
	if q.inFlight--; q.inFlight == 0 {
		clear(q.log)
		q.log = q.log[:0]
	}
}
