package raftstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// maxBatchEvents bounds a WatchBatch; the rest of its last revision may exceed it.
const maxBatchEvents = 1024

// WatchRequest selects the keys of [Key, RangeEnd), with RangeEnd as in an Op, from StartRevision on. StartRevision 0 is the next
// revision; a watch from a future revision waits for it.
type WatchRequest struct {
	Key, RangeEnd string
	StartRevision int64
}

// WatchBatch is one or more whole revisions. Events are shared and read-only. Everything up to Revision has been delivered after it.
type WatchBatch struct {
	Events   []mvcc.Event
	Revision int64
}

// hub hands events to watchers. Watchers of the same range share a group, which holds the events of that range once. An event reaches
// and wakes only the groups whose range it lies in, found by key and by the prefix lengths in use.
//
//	apply ──publish──▶ hub ──▶ group /registry/pods/  events… ◀──cursor── watcher
//	                      └──▶ group /registry/nodes/ events… ◀──cursor── watcher
//
// The writer never waits for a watcher: it appends to groups under mu, and a watcher holds mu only to search a slice.
type hub struct {
	mu       sync.RWMutex
	root     *mvcc.Root // as last published
	closed   bool
	keys     map[string]*group // groups with RangeEnd ""
	prefixes map[string]*group // groups with RangeEnd = PrefixEnd(Key)
	lengths  map[int]int       // length of a watched prefix → groups of that length
	ranges   []*group          // any other range
	done     chan struct{}     // closed with the hub
}

// group is the events of one range since floor.
type group struct {
	start, end string
	events     []mvcc.Event  // append-only; trimmed by replacing
	floor      int64         // every event later than this is in events
	wake       chan struct{} // closed when events were added
	watchers   int
}

func newHub(r *mvcc.Root) *hub {
	return &hub{
		root:     r,
		keys:     make(map[string]*group),
		prefixes: make(map[string]*group),
		lengths:  make(map[int]int),
		done:     make(chan struct{}),
	}
}

// count returns how many watchers there are.
func (h *hub) count() (n int) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, g := range h.keys {
		n += g.watchers
	}
	for _, g := range h.prefixes {
		n += g.watchers
	}
	for _, g := range h.ranges {
		n += g.watchers
	}
	return n
}

// publish makes r the newest state and hands its new events to the watchers.
func (h *hub) publish(r *mvcc.Root) {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := r.Hist.Events[r.Hist.After(h.root.View.Rev):]
	compacted := r.Hist.Compacted() > h.root.Hist.Compacted()
	h.root = r
	touched := make(map[*group]struct{})
	for i := range events {
		h.each(events[i].KV.Key, func(g *group) {
			g.events = append(g.events, events[i])
			touched[g] = struct{}{}
		})
	}
	for g := range touched {
		close(g.wake)
		g.wake = make(chan struct{})
	}
	if compacted {
		h.eachGroup(func(g *group) { g.trim(r.Hist.Compacted()) })
	}
}

// reset makes r the state after a snapshot replaced the old one. Every watcher gets ErrOverrun, because its place in the old history
// means nothing in the new one.
func (h *hub) reset(r *mvcc.Root) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.root = r
	h.eachGroup(func(g *group) {
		g.events = nil
		g.floor = r.View.Rev
		close(g.wake)
		g.wake = make(chan struct{})
	})
}

// each calls fn for the groups key lies in.
func (h *hub) each(key string, fn func(*group)) {
	if g := h.keys[key]; g != nil {
		fn(g)
	}
	for n := range h.lengths {
		if n <= len(key) {
			if g := h.prefixes[key[:n]]; g != nil {
				fn(g)
			}
		}
	}
	for _, g := range h.ranges {
		if mvcc.InRange(key, g.start, g.end) {
			fn(g)
		}
	}
}

func (h *hub) eachGroup(fn func(*group)) {
	for _, g := range h.keys {
		fn(g)
	}
	for _, g := range h.prefixes {
		fn(g)
	}
	for _, g := range h.ranges {
		fn(g)
	}
}

// trim removes the events up to rev. It copies the rest only when most of the array is dead, which keeps the cost per event constant.
func (g *group) trim(rev int64) {
	n := mvcc.EventsAfter(g.events, rev)
	if n == 0 {
		return
	}
	g.floor = g.events[n-1].KV.ModRevision
	g.events = g.events[n:]
	if cap(g.events) > 2*len(g.events)+64 || n > len(g.events) {
		g.events = append(make([]mvcc.Event, 0, len(g.events)+16), g.events...)
	}
}

func (h *hub) find(start, end string) *group {
	switch {
	case end == "":
		return h.keys[start]
	case start != "" && end == mvcc.PrefixEnd(start):
		return h.prefixes[start]
	}
	for _, g := range h.ranges {
		if g.start == start && g.end == end {
			return g
		}
	}
	return nil
}

func (h *hub) insert(g *group) {
	switch {
	case g.end == "":
		h.keys[g.start] = g
	case g.start != "" && g.end == mvcc.PrefixEnd(g.start):
		h.prefixes[g.start] = g
		h.lengths[len(g.start)]++
	default:
		h.ranges = append(h.ranges, g)
	}
}

func (h *hub) remove(g *group) {
	switch {
	case g.end == "":
		delete(h.keys, g.start)
	case g.start != "" && g.end == mvcc.PrefixEnd(g.start):
		delete(h.prefixes, g.start)
		if n := len(g.start); h.lengths[n] == 1 {
			delete(h.lengths, n)
		} else {
			h.lengths[n]--
		}
	default:
		for i := range h.ranges {
			if h.ranges[i] == g {
				h.ranges = append(h.ranges[:i:i], h.ranges[i+1:]...)
				return
			}
		}
	}
}

// watch starts a watcher. It searches history without the lock, and only the events since then under the lock.
func (h *hub) watch(req WatchRequest) (*Watcher, error) {
	if err := mvcc.CheckKey(req.Key, req.RangeEnd); err != nil {
		return nil, err
	}
	if req.StartRevision < 0 {
		return nil, fmt.Errorf("%w: watch from revision %d", ErrInvalid, req.StartRevision)
	}
	for {
		seen, covered := h.look(req)
		var past []mvcc.Event
		searched := req.StartRevision > 0 && !covered
		if searched {
			if err := watchable(seen, req.StartRevision); err != nil {
				return nil, err
			}
			past = filter(past, seen.Hist.Events[seen.Hist.After(req.StartRevision-1):], req)
		}
		if w, err := h.join(req, seen, past, searched); w != nil || err != nil {
			return w, err
		}
	}
}

// look returns the newest state, and whether a group already holds every event that req asks for.
func (h *hub) look(req WatchRequest) (*mvcc.Root, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	g := h.find(req.Key, req.RangeEnd)
	return h.root, g != nil && g.floor < req.StartRevision
}

// join returns a watcher in a group that holds every event the watcher needs, or nil when history must be searched first. past are the
// events that a search of seen, an earlier state, found.
func (h *hub) join(req WatchRequest, seen *mvcc.Root, past []mvcc.Event, searched bool) (*Watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	pos := h.root.View.Rev
	if req.StartRevision > 0 {
		pos = req.StartRevision - 1
		if err := watchable(h.root, req.StartRevision); err != nil {
			return nil, err
		}
	}
	// A watcher of the future must not make the group begin there.
	floor := min(pos, h.root.View.Rev)
	g := h.find(req.Key, req.RangeEnd)
	fits := g != nil && g.floor <= floor
	if !fits && req.StartRevision > 0 && !searched {
		return nil, nil
	}
	if g == nil {
		g = &group{start: req.Key, end: req.RangeEnd, wake: make(chan struct{})}
		h.insert(g)
	}
	if !fits {
		since := max(floor, seen.View.Rev)
		g.events = filter(past, h.root.Hist.Events[h.root.Hist.After(since):], req)
		g.floor = floor
	}
	g.watchers++
	w := &Watcher{hub: h, group: g, done: make(chan struct{})}
	w.pos.Store(pos)
	return w, nil
}

// watchable returns ErrCompacted when the events from start on are no longer all known.
func watchable(r *mvcc.Root, start int64) error {
	if c := r.Hist.Compacted(); start <= c && c > mvcc.FirstRevision {
		return fmt.Errorf("%w: watch from %d, oldest is %d", ErrCompacted, start, c+1)
	}
	return nil
}

func filter(to, events []mvcc.Event, req WatchRequest) []mvcc.Event {
	for i := range events {
		if mvcc.InRange(events[i].KV.Key, req.Key, req.RangeEnd) {
			to = append(to, events[i])
		}
	}
	return to
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
}

// Watcher is a position in the history of one range. It has no goroutine and no buffer: Next pulls. Only one goroutine may call Next;
// any may call Progress and Close.
type Watcher struct {
	hub   *hub
	group *group
	pos   atomic.Int64 // everything up to this has been delivered
	once  sync.Once
	done  chan struct{}
}

// Next returns the next whole revisions, in order, each event exactly once. It blocks until there is one. ErrOverrun: the watcher fell
// behind the history that is kept and has missed events; other watchers are not affected. ErrClosed: the watcher or the store was
// closed.
func (w *Watcher) Next(ctx context.Context) (WatchBatch, error) {
	for {
		b, wake, err := w.poll()
		if err != nil || len(b.Events) > 0 {
			return b, err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return WatchBatch{}, ctx.Err()
		case <-w.done:
			return WatchBatch{}, ErrClosed
		case <-w.hub.done:
			return WatchBatch{}, ErrClosed
		}
	}
}

// poll returns the events there are now, or a channel that closes when there are more.
func (w *Watcher) poll() (WatchBatch, <-chan struct{}, error) {
	h := w.hub
	h.mu.RLock()
	defer h.mu.RUnlock()
	select {
	case <-w.done:
		return WatchBatch{}, nil, ErrClosed
	default:
	}
	if h.closed {
		return WatchBatch{}, nil, ErrClosed
	}
	g, pos := w.group, w.pos.Load()
	if pos < g.floor {
		return WatchBatch{}, nil, fmt.Errorf("%w: at %d, oldest is %d", ErrOverrun, pos, g.floor+1)
	}
	i := mvcc.EventsAfter(g.events, pos)
	if i == len(g.events) {
		w.pos.Store(max(pos, h.root.View.Rev))
		return WatchBatch{}, g.wake, nil
	}
	j := min(i+maxBatchEvents, len(g.events))
	for j < len(g.events) && g.events[j].KV.ModRevision == g.events[j-1].KV.ModRevision {
		j++
	}
	b := WatchBatch{Events: g.events[i:j:j], Revision: g.events[j-1].KV.ModRevision}
	if j == len(g.events) {
		b.Revision = max(b.Revision, h.root.View.Rev)
	}
	w.pos.Store(b.Revision)
	return b, nil, nil
}

// Progress returns the revision up to which Next has returned every event of the watched range. It advances with the store's revision
// also when the range is not written.
func (w *Watcher) Progress() int64 {
	w.hub.mu.RLock()
	defer w.hub.mu.RUnlock()
	pos := w.pos.Load()
	if g := w.group; pos >= g.floor && mvcc.EventsAfter(g.events, pos) == len(g.events) {
		return max(pos, w.hub.root.View.Rev)
	}
	return pos
}

// Close ends the watcher; a Next under way returns ErrClosed.
func (w *Watcher) Close() {
	w.once.Do(func() {
		close(w.done)
		w.hub.mu.Lock()
		defer w.hub.mu.Unlock()
		if w.group.watchers--; w.group.watchers == 0 {
			w.hub.remove(w.group)
		}
	})
}
