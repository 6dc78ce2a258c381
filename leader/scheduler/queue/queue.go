package queue

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// restLimit is how long a refused pod rests at most, in case an event helps that no hint names.
const restLimit = 5 * time.Minute

type stage uint8

const (
	active stage = iota
	waiting
	refused
	gated
	inFlight
)

// Item is one pod on its way through the queue. Between Pop and Done, Refused or Failed it belongs to the caller.
type Item struct {
	Pod *snapshot.Pod
	// Attempts counts the times the pod was popped. Added is when it first came, First and Popped are when it was popped the
	// first and the last time.
	Attempts             int
	Added, First, Popped time.Time

	rules  []string // rules that refused the pod
	since  time.Time
	due    time.Time
	serial uint64
	place  int
	stage  stage
	popped int // position in the event log when it was popped
}

// Config is the configuration of a Queue.
type Config struct {
	Clock clock.Clock
	// Backoff is how long a pod rests after its first refused attempt. It doubles with each attempt, up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Hints are, by rule, the events that may undo a refusal.
	Hints map[string][]Hint
}

// Queue holds the pods that wait for a node.
type Queue struct {
	cfg  Config
	wake chan struct{}

	mu      sync.Mutex
	pods    map[types.UID]*Item
	active  entries
	waiting entries
	resting map[types.UID]*Item // refused and gated
	restDue time.Time           // earliest time at which a refused pod reaches restLimit; zero when none rests
	serial  uint64
	// log holds the events since the oldest pod in flight was popped.
	log      []Event
	inFlight int
}

// New returns an empty queue. Zero durations mean 1 s and 10 s.
func New(cfg Config) *Queue {
	if cfg.Backoff == 0 {
		cfg.Backoff = time.Second
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = 10 * time.Second
	}
	return &Queue{
		cfg:     cfg,
		wake:    make(chan struct{}, 1),
		pods:    make(map[types.UID]*Item),
		active:  entries{less: byPriority},
		waiting: entries{less: byDue},
		resting: make(map[types.UID]*Item),
	}
}

// Add adds a pod without a node, or updates it if the queue has it already.
func (q *Queue) Add(p *snapshot.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if item, ok := q.pods[p.Object.UID]; ok {
		q.update(item, p)
		return
	}
	now := q.cfg.Clock.Now()
	q.serial++
	item := &Item{Pod: p, Added: now, since: now, serial: q.serial}
	q.pods[p.Object.UID] = item
	if held(p.Object) {
		q.rest(item, gated)
		return
	}
	q.activate(item)
}

// update replaces a pod by its newer version. A resting pod comes back if the change may make it schedulable.
func (q *Queue) update(item *Item, p *snapshot.Pod) {
	old := item.Pod
	switch item.stage {
	case inFlight: // the caller reads item.Pod, so the change goes to the log
		q.log = append(q.log, Event{Kind: Pod, Action: Update, Old: old.Object, New: p.Object})
		return
	case active:
		q.active.remove(item)
		item.Pod = p
		q.active.add(item)
	case waiting:
		item.Pod = p
	case gated:
		item.Pod = p
		if !held(p.Object) {
			delete(q.resting, p.Object.UID)
			q.activate(item)
		}
	case refused:
		item.Pod = p
		if changed(old.Object, p.Object) {
			q.revive(item)
		}
	}
}

// Delete removes a pod.
func (q *Queue) Delete(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	item, ok := q.pods[uid]
	if !ok {
		return
	}
	delete(q.pods, uid)
	switch item.stage {
	case active:
		q.active.remove(item)
	case waiting:
		q.waiting.remove(item)
	case refused, gated:
		delete(q.resting, uid)
	case inFlight: // the caller ends the attempt
	}
}

// Pop returns the next pod to schedule and blocks until there is one. Only one goroutine may call it.
func (q *Queue) Pop(ctx context.Context) (*Item, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		item, next := q.take()
		if item != nil {
			return item, nil
		}
		if err := q.sleep(ctx, next); err != nil {
			return nil, err
		}
	}
}

// sleep waits for a wake-up or for the moment next (zero: none).
func (q *Queue) sleep(ctx context.Context, next time.Time) error {
	var due <-chan time.Time
	if !next.IsZero() {
		t := q.cfg.Clock.NewTimer(next.Sub(q.cfg.Clock.Now()))
		defer t.Stop()
		due = t.C()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-q.wake:
	case <-due:
	}
	return nil
}

func (q *Queue) take() (*Item, time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.moveDue()
	if q.active.Len() == 0 {
		return nil, next
	}
	item := q.active.take()
	item.stage = inFlight
	item.Attempts++
	item.Popped = q.cfg.Clock.Now()
	if item.First.IsZero() {
		item.First = item.Popped
	}
	item.popped = len(q.log)
	q.inFlight++
	return item, time.Time{}
}

// moveDue activates the pods that are due and returns when the next one is.
func (q *Queue) moveDue() time.Time {
	now := q.cfg.Clock.Now()
	for item := q.waiting.first(); item != nil && !item.due.After(now); item = q.waiting.first() {
		q.activate(q.waiting.take())
	}
	q.endLongRests(now)
	next := q.restDue
	if item := q.waiting.first(); item != nil && (next.IsZero() || item.due.Before(next)) {
		next = item.due
	}
	return next
}

// endLongRests revives the pods that have rested for restLimit. It reads them only when one may be due.
func (q *Queue) endLongRests(now time.Time) {
	if q.restDue.IsZero() || q.restDue.After(now) {
		return
	}
	q.restDue = time.Time{}
	for _, item := range q.resting {
		if item.stage == gated {
			continue
		}
		if !item.since.Add(restLimit).After(now) {
			q.revive(item)
			continue
		}
		q.noteRest(item)
	}
}

func (q *Queue) noteRest(item *Item) {
	if until := item.since.Add(restLimit); q.restDue.IsZero() || until.Before(q.restDue) {
		q.restDue = until
	}
}

// Happened revives the refused pods that the event may make schedulable.
func (q *Queue) Happened(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inFlight > 0 {
		q.log = append(q.log, e)
	}
	for _, item := range q.resting {
		if item.stage == refused && q.helps(item, e) {
			q.revive(item)
		}
	}
}

func (q *Queue) helps(item *Item, e Event) bool {
	if e.Kind == Pod && e.Action == Update {
		if p, ok := e.New.(*v1.Pod); ok && p.UID == item.Pod.Object.UID {
			return changed(e.Old.(*v1.Pod), p)
		}
	}
	if len(item.rules) == 0 {
		return e.Kind == Node && e.Action == Add
	}
	for _, rule := range item.rules {
		for _, h := range q.cfg.Hints[rule] {
			if h.applies(item.Pod.Object, e) {
				return true
			}
		}
	}
	return false
}

func (q *Queue) rest(item *Item, s stage) {
	item.stage = s
	q.resting[item.Pod.Object.UID] = item
	if s == refused {
		q.noteRest(item)
	}
}

func (q *Queue) activate(item *Item) {
	item.stage = active
	q.active.add(item)
	q.signal()
}

// revive moves a refused pod to the waiting pods until its back-off is over, or to the active pods if it is over.
func (q *Queue) revive(item *Item) {
	delete(q.resting, item.Pod.Object.UID)
	item.due = item.since.Add(q.backoff(item))
	if !item.due.After(q.cfg.Clock.Now()) {
		q.activate(item)
		return
	}
	item.stage = waiting
	q.waiting.add(item)
	q.signal()
}

func (q *Queue) backoff(item *Item) time.Duration {
	d := q.cfg.Backoff
	for i := 1; i < item.Attempts; i++ {
		if d *= 2; d >= q.cfg.MaxBackoff {
			return q.cfg.MaxBackoff
		}
	}
	return d
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Lengths are the numbers of pods by state.
type Lengths struct{ Active, Waiting, Refused, Gated, InFlight int }

// Lengths counts the pods.
func (q *Queue) Lengths() Lengths {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := Lengths{Active: q.active.Len(), Waiting: q.waiting.Len(), InFlight: q.inFlight}
	for _, item := range q.resting {
		if item.stage == gated {
			l.Gated++
		} else {
			l.Refused++
		}
	}
	return l
}
