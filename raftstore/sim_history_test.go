package raftstore_test

import (
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// simKeys are the keys of the linearizability check, few so that clients meet.
const simKeys = 6

func simKey(i int) string { return fmt.Sprintf("/k/%d", i) }

// simOp is what one client asked and what it was told.
type simOp struct {
	client    int
	call, ret int64         // of the logical clock; ret is never when no answer came
	began     time.Duration // of the fake clock
	text      string
	txn       raftstore.Txn
	read      bool   // a view, not a transaction
	serial    string // of a view that need not be current: the run of the server asked
	tag       string // a value that only this operation writes
	known     bool   // the outcome
	refused   bool   // known to have changed nothing
	outside   bool   // it writes keys the model does not have
	happened  bool   // the outcome is unknown, but it was seen in the history at rev
	rev       int64
	succeeded bool
	results   []raftstore.OpResult
	cells     [simKeys]simCell // of a view
}

const never = math.MaxInt64

// simCell is one key at one revision, comparable.
type simCell struct {
	value                string
	create, mod, version int64
	lease                raftstore.LeaseID
}

func cellOf(kv *raftstore.KeyValue) simCell {
	if kv == nil {
		return simCell{}
	}
	return simCell{string(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease}
}

func cellsOf(v *raftstore.View) (c [simKeys]simCell) {
	for i := range c {
		c[i] = cellOf(v.Get(simKey(i)))
	}
	return c
}

// simEvent is one event as one watcher saw it.
type simEvent struct {
	key     string
	deleted bool
	cell    simCell
}

func (e simEvent) String() string {
	if e.deleted {
		return fmt.Sprintf("%d: delete %s", e.cell.mod, e.key)
	}
	return fmt.Sprintf("%d: put %s=%s (created %d, version %d, lease %x)", e.cell.mod, e.key, e.cell.value, e.cell.create, e.cell.version, int64(e.cell.lease))
}

func eventOf(e raftstore.Event) simEvent {
	return simEvent{key: e.KV.Key, deleted: e.Type == raftstore.EventDelete, cell: cellOf(e.KV)}
}

// simWatch is what one watcher was given, over all its reconnections.
type simWatch struct {
	text       string
	key, end   string
	spans      []simSpan
	mayLose    bool // its place in history was taken from it
	progressed []simProgress
}

// simSpan is what came without a gap after one revision.
type simSpan struct {
	after  int64 // nothing up to this was asked for
	events []simEvent
	upTo   int64 // everything up to this was delivered
}

type simProgress struct{ said, have int64 }

// simLease is what a client knows of a lease.
type simLease struct {
	id      raftstore.LeaseID
	ttl     time.Duration
	key     string
	alive   time.Duration // when the last renewal that was acknowledged was asked for
	revoked bool          // by the client itself, or it may have been
}

// history is what happened in one run, as seen from outside.
type history struct {
	mu      sync.Mutex
	clock   int64
	start   time.Time
	ops     []*simOp
	watches []*simWatch
	leases  []*simLease
	witness map[int64][]simEvent    // by revision, as the first watcher saw it
	seen    map[int64]time.Duration // when
	newest  int64                   // greatest revision of witness
	leaders map[uint64]string       // by term
	faults  []string                // what must not have been
	lines   []string
	took    time.Duration
	out     io.Writer // gets the trace at once, if set
}

func newHistory() *history {
	return &history{start: time.Now(), witness: make(map[int64][]simEvent), seen: make(map[int64]time.Duration), leaders: make(map[uint64]string)}
}

func (h *history) now() time.Duration { return time.Since(h.start) }

// tick is the logical clock: it orders what happens at one instant of fake time.
func (h *history) tick() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	return h.clock
}

const maxTrace = 6000

func (h *history) logf(format string, args ...any) {
	line := fmt.Sprintf("%10.6f  ", h.now().Seconds()) + fmt.Sprintf(format, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.out != nil {
		fmt.Fprintln(h.out, line)
	}
	if len(h.lines) == maxTrace {
		h.lines = append(h.lines[:0:0], h.lines[maxTrace/2:]...)
	}
	h.lines = append(h.lines, line)
}

// failf notes something that must not be.
func (h *history) failf(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	h.logf("FAULT %s", s)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.faults) < 20 {
		h.faults = append(h.faults, s)
	}
}

func (h *history) begin(op *simOp) {
	op.began = h.now()
	op.call, op.ret = h.tick(), never
}

func (h *history) end(op *simOp) {
	if op.known {
		op.ret = h.tick()
	}
	h.mu.Lock()
	h.ops = append(h.ops, op)
	h.mu.Unlock()
	h.logf("client %d: %s → %s", op.client, op.text, op.outcome())
}

func (op *simOp) outcome() string {
	switch {
	case op.refused:
		return "refused"
	case !op.known:
		return "unknown"
	case op.read:
		return fmt.Sprintf("at %d", op.rev)
	}
	return fmt.Sprintf("at %d, %v", op.rev, op.succeeded)
}

// leads notes that id acts as leader of term.
func (h *history) leads(id string, term uint64) {
	h.mu.Lock()
	other, ok := h.leaders[term]
	if !ok {
		h.leaders[term] = id
	}
	h.mu.Unlock()
	if !ok {
		h.logf("server %s leads term %d", short(id), term)
	} else if other != id {
		h.failf("two leaders in term %d: %s and %s", term, short(other), short(id))
	}
}

// saw notes one whole revision as a watcher of everything saw it.
func (h *history) saw(who string, rev int64, events []simEvent) {
	h.mu.Lock()
	known, ok := h.witness[rev]
	if !ok {
		h.witness[rev], h.seen[rev] = events, h.now()
		h.newest = max(h.newest, rev)
	}
	h.mu.Unlock()
	if !ok {
		return
	}
	same := len(known) == len(events)
	for i := 0; same && i < len(known); i++ {
		same = known[i] == events[i]
	}
	if !same {
		h.failf("revision %d is %v, but %s saw %v", rev, known, who, events)
	}
}

func short(id string) string { return id[:2] }
