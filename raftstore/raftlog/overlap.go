package raftlog

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
)

// overlap is the end of the log that a leader has in memory and not on disk yet. A leader with followers writes its log while
// the followers write theirs, instead of before them (Ongaro, "Consensus: Bridging Theory and Practice", 10.2.1).
//
//	Raft ── StoreLogs ──▶ overlap ── one writer ──▶ log file
//	  │                     │ GetLog, LastIndex       │
//	  ├── AppendEntries ──▶ followers                 │ durable
//	  │                     │ "I have it on disk"     ▼
//	  └──◀─ AckTransport ◀──┴──────── waits until the entry is on this disk too
//
// Before an entry is on this disk, only the followers' logs may see it. Raft counts the leader's own copy the moment StoreLogs
// returns, so safety rests on when Raft hears of the followers' copies:
//
//   - The commit index is an entry that a majority has. A majority of two or more includes a follower, and Raft hears of that
//     follower's copy only when this disk has the entry too. So Raft's committed entries are on a true majority of disks, and
//     everything that follows from the commit index (state, reads, the commit mark, snapshots, votes) needs no care.
//   - A leader that is the only voter is a majority of one: it waits for its disk.
//   - A configuration counts as soon as it is in the log, and may make a majority of one: StoreLogs waits for the disk.
//   - The term. All entries of overlap are of the term in which this server leads, and they are written before another term is
//     (Store.Set). No other server makes entries of that term. So a server that has stepped down acknowledges no entry and
//     casts no vote while its overlap is not on disk: either begins with a new term.
//   - A crash. Entries that are lost were counted by no server but the leader that is gone. The server never leads that term
//     again; another server that has the entries may commit them, or not.
//
// The gain (BenchmarkOverlappedAppend: three servers and one disk, five pairs, medians, load average 4 to 16) was 920 writes/s instead of
// 556 with one client, 3875 instead of 4111 with 16, and 11,666 instead of 10,869 with 64; the 99th percentile was 10, 27 and 33 ms instead
// of 13, 24 and 37 ms.
//
// An append that fails is repeated until the disk takes it, like a term: Raft believes in the entries and may have to send them.
// Meanwhile StoreLogs returns the error, which ends the leadership.
type overlap struct {
	first atomic.Uint64 // index of the first entry, 0 when there is none

	mu      sync.Mutex
	logs    []*raft.Log   // one append; nil when all is on disk
	writing bool          // the writer runs
	err     error         // of the last write
	waiting bool          // some goroutine waits for moved
	moved   chan struct{} // closed when a write ended
}

func newOverlap() *overlap { return &overlap{moved: make(chan struct{})} }

// onDisk reports whether every entry up to index is on disk.
func (t *overlap) onDisk(index uint64) bool {
	first := t.first.Load()
	return first == 0 || index < first
}

// get returns an entry that is not on disk, nil when it is on disk or does not exist.
func (t *overlap) get(index uint64) *raft.Log {
	if t.onDisk(index) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.logs) == 0 || index < t.logs[0].Index || index-t.logs[0].Index >= uint64(len(t.logs)) {
		return nil
	}
	return t.logs[index-t.logs[0].Index]
}

// last returns the index of the last entry, 0 when there is none.
func (t *overlap) last() uint64 {
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

// patience says what a wait does about a disk that refuses.
type patience int

const (
	failFast patience = iota // return the disk's error
	waitLong                 // wait until the disk takes the write
)

// until waits for ok, which is called under mu. It returns the disk's error if the patience is failFast, and ErrClosed when
// closed is.
func (t *overlap) until(closed <-chan struct{}, p patience, ok func() bool) error {
	for {
		t.mu.Lock()
		if ok() {
			t.mu.Unlock()
			return nil
		}
		if t.err != nil && p == failFast {
			defer t.mu.Unlock()
			return t.err
		}
		t.waiting = true
		moved := t.moved
		t.mu.Unlock()
		select {
		case <-moved:
		case <-closed:
			return errdefs.ErrClosed
		}
	}
}

// drain returns when every entry is on disk, or with the disk's error.
func (t *overlap) drain() error {
	if t.first.Load() == 0 {
		return nil
	}
	return t.until(nil, failFast, func() bool { return len(t.logs) == 0 })
}

// await returns when every entry up to index is on disk, when closed is closed, or, if the patience is failFast, with the disk's
// error.
func (t *overlap) await(index uint64, closed <-chan struct{}, p patience) error {
	if t.onDisk(index) {
		return nil
	}
	return t.until(closed, p, func() bool { return t.onDisk(index) })
}

// awaitRoom returns when overlap takes another append, which is when it is empty. Raft gathers what it is given meanwhile and
// appends it as one: fewer and larger appends are worth more than two appends under way.
func (t *overlap) awaitRoom() error {
	return t.until(nil, failFast, func() bool { return t.err == nil && len(t.logs) == 0 })
}

// add takes an append, for which there is room. It returns true when a writer must be started.
func (t *overlap) add(logs []*raft.Log) (start bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.logs = slices.Clone(logs) // Raft uses its slice again
	t.first.Store(logs[0].Index)
	start = !t.writing
	t.writing = true
	return start
}

// next returns the entries to write. When there are none, the writer has ended.
func (t *overlap) next() []*raft.Log {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.logs) == 0 {
		t.endWriter()
	}
	return t.logs
}

// endWriter notes that the writer has ended; mu is held.
func (t *overlap) endWriter() {
	t.writing = false
	t.signal()
}

// wrote notes the result of writing the entries that next returned.
func (t *overlap) wrote(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err = err; err == nil {
		t.logs = nil
		t.first.Store(0)
	}
	t.signal()
}

func (t *overlap) signal() {
	if t.waiting {
		close(t.moved)
		t.moved, t.waiting = make(chan struct{}), false
	}
}

// Leader is what Store asks of the leadership to write beside the followers.
type Leader struct {
	// Followed reports whether this server leads and is not the only voter. It is called by Raft's main goroutine, which alone
	// begins and ends a leadership.
	Followed func() bool
	// WriteFailed is called when the disk refuses an append that StoreLogs has returned for.
	WriteFailed func()
}

// WriteBeside lets StoreLogs return while the entries are being written, as long as l says that followers have to acknowledge
// them.
func (s *Store) WriteBeside(l Leader) { s.leader.Store(&l) }

// mayOverlap reports whether StoreLogs may return before logs are on disk.
func (s *Store) mayOverlap(logs []*raft.Log) bool {
	l := s.leader.Load()
	if l == nil || s.cut.Load() || !l.Followed() {
		return false
	}
	for _, e := range logs {
		if e.Type != raft.LogCommand && e.Type != raft.LogNoop {
			return false
		}
	}
	last := s.overlap.last()
	return last == 0 || logs[0].Index == last+1
}

// storeBeside gives logs to the writer, as soon as there is room.
func (s *Store) storeBeside(logs []*raft.Log) error {
	if err := s.overlap.awaitRoom(); err != nil {
		return diskfile.Error(s.path, err)
	}
	s.cache.add(logs)
	if s.overlap.add(logs) {
		go s.writeOverlap()
	}
	return nil
}

// writeOverlap writes until overlap is empty. It repeats a write that fails until the disk takes it or the store stops.
func (s *Store) writeOverlap() {
	wait := retryMin
	for {
		logs := s.overlap.next()
		if len(logs) == 0 {
			return
		}
		err := s.file.StoreLogs(logs)
		failed := s.noteWrite(err) != nil
		s.overlap.wrote(err)
		if !failed {
			wait = retryMin
			continue
		}
		s.leader.Load().WriteFailed()
		select {
		case <-time.After(wait):
			wait = min(2*wait, retryMax)
		case <-s.stop:
			s.overlap.mu.Lock()
			defer s.overlap.mu.Unlock()
			s.overlap.endWriter()
			return
		}
	}
}

// settle returns when the writer has ended: all is written, or the disk refused and the store stops.
func (s *Store) settle() {
	_ = s.overlap.until(nil, waitLong, func() bool { return !s.overlap.writing })
}
