package raftstore

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// machine is the replicated state with its readers: it applies entries, publishes roots, feeds the watchers and tells the lessor of
// leases. It can be driven without Raft. apply, publish and restore must be called from one goroutine.
type machine struct {
	state   *mvcc.State
	root    atomic.Pointer[mvcc.Root]
	hub     *hub
	leases  *lessor
	index   atomic.Uint64            // last entry applied
	term    atomic.Uint64            // of that entry; see progress for when its proposers have their answers
	dirty   bool                     // applied since the last publish
	origin  uint64                   // of this peer's own commands
	results []consensus.Result       // of this peer's own commands, since the last publish
	settle  func([]consensus.Result) // receives results once they are visible; may be nil
	lost    func()                   // called when a snapshot hides the results of commands that were sent; may be nil
	// progress advances after settle.
	progress *consensus.Progress
	halted   atomic.Pointer[error] // of an entry that this program cannot read; nothing is applied after it

	entries, bytes atomic.Int64 // applied since the last snapshot
	stateBytes     atomic.Int64 // size of the live keys, roughly
}

func newMachine(l *lessor) *machine {
	m := &machine{state: mvcc.NewState(), leases: l, progress: consensus.NewProgress()}
	r := m.state.Capture()
	m.root.Store(r)
	m.hub = newHub(r)
	return m
}

// haltedErr returns the error with which the machine stopped applying entries, nil while it applies them.
func (m *machine) haltedErr() error {
	if err := m.halted.Load(); err != nil {
		return *err
	}
	return nil
}

// applyEntry applies a log entry of any version.
func (m *machine) applyEntry(index, term uint64, data []byte) {
	if index <= m.index.Load() {
		return // applied when the store was opened
	}
	m.term.Store(term)
	if len(data) == 0 || data[0] != consensus.EntryVersion {
		m.apply(index, data)
		return
	}
	defer m.skip(index)
	if m.halted.Load() != nil {
		return
	}
	e, err := consensus.DecodeEntry(data)
	if err != nil {
		m.halted.Store(&err)
		return
	}
	shared := alone
	if len(e.Items) > 1 {
		shared = withNeighbours
	}
	for i := range e.Items {
		r := consensus.Result{Seq: e.Items[i].Seq, Term: e.Term, Late: e.Term != term}
		if !r.Late {
			r.Applied = m.applyCommand(index, e.Items[i].Command, shared)
		}
		if e.Origin == m.origin {
			m.results = append(m.results, r)
		}
	}
}

// skip notes an entry that changes nothing.
func (m *machine) skip(index uint64) {
	m.index.Store(index)
	m.dirty = true
}

// apply makes the change that a command of entry number index describes. It becomes visible with the next publish.
func (m *machine) apply(index uint64, data []byte) mvcc.Applied {
	return m.applyCommand(index, data, alone)
}

// sharing says whether a command has neighbours in its entry.
type sharing int

const (
	alone sharing = iota
	withNeighbours
)

func (m *machine) applyCommand(index uint64, data []byte, shared sharing) mvcc.Applied {
	if err := m.haltedErr(); err != nil {
		return mvcc.Applied{Err: err}
	}
	c, err := mvcc.DecodeCommand(data)
	if err != nil {
		m.halted.Store(&err)
		return mvcc.Applied{Err: err}
	}
	if shared == withNeighbours {
		c.Raw = math.MaxInt // values are copied, so that a key does not keep its neighbours in memory
	}
	if c.Kind == mvcc.KindCompact {
		m.publish() // watchers see the events that are about to leave history
	}
	a := m.state.Apply(c)
	if a.Err == nil {
		switch c.Kind {
		case mvcc.KindLeaseGrant:
			m.leases.granted(c.Lease, c.TTL)
		case mvcc.KindLeaseRevoke:
			m.leases.revoked(c.Lease)
		}
	}
	m.index.Store(index)
	m.entries.Add(1)
	m.bytes.Add(int64(len(data)))
	m.dirty = true
	return a
}

// publish makes everything applied so far visible: first to readers, then to watchers, so that a view taken after an event
// includes it.
func (m *machine) publish() {
	if !m.dirty {
		return
	}
	m.dirty = false
	r := m.state.Capture()
	r.Index, r.Term = m.index.Load(), m.term.Load()
	m.root.Store(r)
	m.stateBytes.Store(m.state.Bytes)
	m.hub.publish(r)
	if len(m.results) > 0 && m.settle != nil {
		m.settle(m.results)
	}
	clear(m.results)
	m.results = m.results[:0]
	m.progress.Advance(m.index.Load(), m.term.Load())
}

// errLate refuses a snapshot that the leader sent long ago.
//
// Upstream: Raft installs a snapshot without a look at how far this peer is.
//
// Consequence: the state would go back, and the log that came since would be dropped. TestASnapshotThatComesLateIsRefused shows it.
var errLate = errors.New("raftstore: snapshot came too late")

// restore replaces the state by a snapshot. A snapshot of format 1 does not say which entry it reaches: goroutines that wait for
// an entry then wait for the next one.
func (m *machine) restore(r io.Reader) error {
	s, info, err := mvcc.ReadSnapshotAt(bufio.NewReaderSize(r, 1<<20))
	if err != nil {
		return err
	}
	if at := m.index.Load(); info.Index < at && s.Rev <= m.state.Rev {
		return fmt.Errorf("%w: snapshot up to entry %d, %d is applied", errLate, info.Index, at)
	}
	m.state = s
	m.index.Store(info.Index)
	m.term.Store(info.Term)
	root := s.Capture()
	root.Index, root.Term = info.Index, info.Term
	m.root.Store(root)
	m.stateBytes.Store(s.Bytes)
	m.hub.reset(root)
	if m.lost != nil {
		m.lost() // before progress says that the terms up to here are over
	}
	m.leases.reset(root)
	m.entries.Store(0)
	m.bytes.Store(0)
	m.progress.Advance(info.Index, info.Term)
	return nil
}
