package raftstore

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// tail is the end of the log that a leader has in memory and not on disk yet: it
// writes while the other servers write the same, instead of before them (Ongaro,
// "Consensus: Bridging Theory and Practice", 10.2.1).
//
//	Raft ── StoreLogs ──▶ tail ── one writer ──▶ log file
//	  │                     │ GetLog, LastIndex       │
//	  ├── AppendEntries ──▶ other servers             │ durable
//	  │                     │ "I have it on disk"     ▼
//	  └──◀── acks ──────────┴──────── waits until here too
//
// Who may see an entry before it is on this disk: the other servers' logs, and
// nobody else. Raft counts the leader's own copy the moment StoreLogs returns, so
// everything hangs on what it hears of the other copies:
//
//   - The commit index. It is an entry that a majority has, and a majority of two
//     or more has another server in it, of whose copy Raft hears only when this
//     disk has the entry too (see acks). So what Raft takes for committed is on
//     this disk and on those it heard of, which is a true majority; what follows
//     from the commit index (what the others may apply, the state and
//     whoever looks at it, reads, the commit mark, snapshots, who votes) needs no
//     care of its own.
//   - A majority of one: a leader that is the only voter waits for its disk.
//   - Who votes counts as soon as it is in the log, so that an entry about it may
//     make a majority of one: StoreLogs waits for the disk.
//   - The term. All of tail is of the term this server leads in, and it is
//     written before another term is (see disk.Set). Nobody else makes entries of
//     that term, so a server that has stepped down says of no entry that it has
//     it, and votes for nobody, while its tail is not on disk: either begins with
//     a new term.
//   - A crash. What is lost was counted by nobody but the leader that is gone.
//     The server leads that term never again, and another that has the entries
//     may make them committed, or not.
//
// An append that fails is repeated until the disk takes it, like a term: Raft
// believes in the entries and may have to send them. Meanwhile StoreLogs returns
// the error, which ends the leadership.
type tail struct {
	first atomic.Uint64 // index of the first entry, 0 when there is none

	mu      sync.Mutex
	logs    []*raft.Log   // one append; nil when all is on disk
	busy    bool          // the writer runs
	err     error         // what the disk said last
	waiting bool          // for moved
	moved   chan struct{} // closed when something was written, or could not be
}

func newTail() *tail { return &tail{moved: make(chan struct{})} }

// reached reports whether everything up to index is on disk.
func (t *tail) reached(index uint64) bool {
	first := t.first.Load()
	return first == 0 || index < first
}

// get returns an entry that is not on disk, nil when it is or does not exist.
func (t *tail) get(index uint64) *raft.Log {
	if t.reached(index) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.logs) == 0 || index < t.logs[0].Index || index-t.logs[0].Index >= uint64(len(t.logs)) {
		return nil
	}
	return t.logs[index-t.logs[0].Index]
}

// last is the index of the last entry, 0 when there is none.
func (t *tail) last() uint64 {
	if t.first.Load() == 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.logs) == 0 {
		return 0
	}
	return t.logs[len(t.logs)-1].Index
}

// until waits for ok, which is called under mu, and returns the disk's error
// instead if there is one and patient is not set. It gives up when closed is.
func (t *tail) until(closed <-chan struct{}, patient bool, ok func() bool) error {
	for {
		t.mu.Lock()
		if ok() {
			t.mu.Unlock()
			return nil
		}
		if t.err != nil && !patient {
			defer t.mu.Unlock()
			return t.err
		}
		t.waiting = true
		moved := t.moved
		t.mu.Unlock()
		select {
		case <-moved:
		case <-closed:
			return ErrClosed
		}
	}
}

// drain returns when nothing is left to be written, or with the disk's error.
func (t *tail) drain() error {
	if t.first.Load() == 0 {
		return nil
	}
	return t.until(nil, false, func() bool { return len(t.logs) == 0 })
}

// await returns when everything up to index is on disk, or closed is closed, or,
// unless patient is set, with the disk's error.
func (t *tail) await(index uint64, closed <-chan struct{}, patient bool) error {
	if t.reached(index) {
		return nil
	}
	return t.until(closed, patient, func() bool { return t.reached(index) })
}

// room returns when the tail takes another append: when it is empty. What Raft is
// given meanwhile it gathers, and appends as one: many clients' writes cost fewer
// entries, which is worth more than another append under way.
func (t *tail) room() error {
	return t.until(nil, false, func() bool { return t.err == nil && len(t.logs) == 0 })
}

// add takes an append, for which there is room, and reports whether there is no
// writer yet.
func (t *tail) add(logs []*raft.Log) (begin bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.logs = slices.Clone(logs) // Raft uses its slice again
	t.first.Store(logs[0].Index)
	begin = !t.busy
	t.busy = true
	return begin
}

// take gives the writer what is to be written; nothing ends it.
func (t *tail) take() []*raft.Log {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.logs) == 0 {
		t.end()
	}
	return t.logs
}

// end says that the writer has ended; mu is held.
func (t *tail) end() {
	t.busy = false
	t.signal()
}

// wrote hears what became of what take gave.
func (t *tail) wrote(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err = err; err == nil {
		t.logs = nil
		t.first.Store(0)
	}
	t.signal()
}

func (t *tail) signal() {
	if t.waiting {
		close(t.moved)
		t.moved, t.waiting = make(chan struct{}), false
	}
}

// overlap is when a disk may write later, and who hears that it could not.
type overlap struct {
	may    func() bool
	failed func()
}

// mayLag reports whether logs may be stored later than StoreLogs returns. It is
// called by Raft's main goroutine, which alone becomes leader or ends to be.
func (d *disk) mayLag(logs []*raft.Log) bool {
	o := d.overlap.Load()
	if o == nil || d.cut.Load() || !o.may() {
		return false
	}
	for _, l := range logs {
		if l.Type != raft.LogCommand && l.Type != raft.LogNoop {
			return false
		}
	}
	last := d.tail.last()
	return last == 0 || logs[0].Index == last+1
}

// storeLater leaves logs to the writer, as soon as there is room.
func (d *disk) storeLater(logs []*raft.Log) error {
	if err := d.tail.room(); err != nil {
		return diskfile.Error(d.path, err)
	}
	d.recent.add(logs)
	if d.tail.add(logs) {
		go d.writeTail()
	}
	return nil
}

// writeTail writes what is in the tail until there is nothing, repeating what
// fails until the disk takes it or is given up.
func (d *disk) writeTail() {
	wait := insistFirst
	for {
		logs := d.tail.take()
		if len(logs) == 0 {
			return
		}
		err := d.store.StoreLogs(logs)
		failed := d.outcome(err) != nil
		d.tail.wrote(err)
		if !failed {
			wait = insistFirst
			continue
		}
		d.overlap.Load().failed()
		select {
		case <-time.After(wait):
			wait = min(2*wait, insistMost)
		case <-d.stop:
			d.tail.mu.Lock()
			defer d.tail.mu.Unlock()
			d.tail.end()
			return
		}
	}
}

// settle returns when the writer has ended: when all is written, or the disk
// refused and the store closes.
func (d *disk) settle() {
	_ = d.tail.until(nil, true, func() bool { return !d.tail.busy })
}
