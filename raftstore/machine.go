package raftstore

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// machine is the state with those who look at it: it applies entries, publishes
// roots, feeds the watchers and tells the lessor of leases. It can be driven
// without Raft. apply, publish and restore belong to one goroutine.
type machine struct {
	state  *mvcc.State
	root   atomic.Pointer[mvcc.Root]
	hub    *hub
	leases *lessor
	index  atomic.Uint64         // last entry applied
	term   atomic.Uint64         // of that entry; its own proposers may not have heard yet, reach says when
	dirty  bool                  // applied since the last publish
	origin uint64                // whose commands are this peer's own
	fate   []fate                // of this peer's own commands, since the last publish
	tell   func([]fate)          // hears them once they are visible; may be nil
	lost   func()                // hears that a snapshot hides what became of them; may be nil
	reach  *gate                 // where those wait who need an entry applied
	halted atomic.Pointer[error] // an entry this program cannot read; nothing is applied after it

	entries, bytes atomic.Int64 // applied since the last snapshot
	stateBytes     atomic.Int64 // what the live keys hold, roughly
}

func newMachine(l *lessor) *machine {
	m := &machine{state: mvcc.NewState(), leases: l, reach: newGate()}
	r := m.state.Capture()
	m.root.Store(r)
	m.hub = newHub(r)
	return m
}

// fate is what became of one of this peer's own commands. A command that came
// too late had no effect and may be proposed again.
type fate struct {
	seq  uint64
	term uint64 // of the batch it was in
	late bool
	mvcc.Applied
}

// enter applies an entry of any version.
func (m *machine) enter(index, term uint64, data []byte) {
	if index <= m.index.Load() {
		return // applied when the store was opened
	}
	m.term.Store(term)
	if len(data) == 0 || data[0] != batchVersion {
		m.apply(index, data)
		return
	}
	defer m.skip(index)
	if m.halted.Load() != nil {
		return
	}
	b, err := decodeBatch(data)
	if err != nil {
		m.halted.Store(&err)
		return
	}
	for i := range b.items {
		f := fate{seq: b.items[i].seq, term: b.term, late: b.term != term}
		if !f.late {
			f.Applied = m.applyPart(index, b.items[i].command, len(b.items) > 1)
		}
		if b.origin == m.origin {
			m.fate = append(m.fate, f)
		}
	}
}

// skip notes an entry that changes nothing.
func (m *machine) skip(index uint64) {
	m.index.Store(index)
	m.dirty = true
}

// apply makes the change a command of entry number index describes. What it did
// becomes visible with the next publish.
func (m *machine) apply(index uint64, data []byte) mvcc.Applied {
	return m.applyPart(index, data, false)
}

// applyPart is apply for a command that may have neighbours in its entry.
func (m *machine) applyPart(index uint64, data []byte, shared bool) mvcc.Applied {
	if err := m.halted.Load(); err != nil {
		return mvcc.Applied{Err: *err}
	}
	c, err := mvcc.DecodeCommand(data)
	if err != nil {
		m.halted.Store(&err)
		return mvcc.Applied{Err: err}
	}
	if shared {
		c.Raw = math.MaxInt // what lives on must not keep its neighbours in memory
	}
	if c.Kind == mvcc.KindCompact {
		m.publish() // watchers see what is about to leave history
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

// publish makes everything applied so far visible: first to readers, then to
// watchers, so that a view taken after an event includes it.
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
	if len(m.fate) > 0 && m.tell != nil {
		m.tell(m.fate)
	}
	clear(m.fate)
	m.fate = m.fate[:0]
	m.reach.advance(m.index.Load(), m.term.Load())
}

// errLate refuses a snapshot that the leader sent long ago. Raft does not look at
// how far this peer is, and would go back and drop the log that came since.
var errLate = errors.New("raftstore: snapshot came too late")

// restore replaces the state by a snapshot. One of format 1 does not say which
// entry it reaches: whoever waits for one waits for the next.
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
		m.lost() // before reach says that the terms up to here are over
	}
	m.leases.reset(root)
	m.entries.Store(0)
	m.bytes.Store(0)
	m.reach.advance(info.Index, info.Term)
	return nil
}
