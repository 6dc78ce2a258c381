package raftstore

import (
	"bufio"
	"io"
	"sync/atomic"
)

// machine is the state with those who look at it: it applies entries, publishes
// roots, feeds the watchers and tells the lessor of leases. It can be driven
// without Raft. apply, publish and restore belong to one goroutine.
type machine struct {
	state  *state
	root   atomic.Pointer[root]
	hub    *hub
	leases *lessor
	index  atomic.Uint64         // last entry applied
	dirty  bool                  // applied since the last publish
	halted atomic.Pointer[error] // an entry this program cannot read; nothing is applied after it

	entries, bytes atomic.Int64 // applied since the last snapshot
	stateBytes     atomic.Int64 // what the live keys hold, roughly
}

func newMachine(l *lessor) *machine {
	m := &machine{state: newState(), leases: l}
	r := m.state.capture()
	m.root.Store(r)
	m.hub = newHub(r)
	return m
}

// apply makes the change entry number index describes. What it did becomes
// visible with the next publish.
func (m *machine) apply(index uint64, data []byte) applied {
	if err := m.halted.Load(); err != nil {
		return applied{err: *err}
	}
	c, err := decodeCommand(data)
	if err != nil {
		m.halted.Store(&err)
		return applied{err: err}
	}
	if c.kind == cmdCompact {
		m.publish() // watchers see what is about to leave history
	}
	a := m.state.apply(c)
	if a.err == nil {
		switch c.kind {
		case cmdLeaseGrant:
			m.leases.granted(c.lease, c.ttl)
		case cmdLeaseRevoke:
			m.leases.revoked(c.lease)
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
	r := m.state.capture()
	m.root.Store(r)
	m.stateBytes.Store(m.state.bytes)
	m.hub.publish(r)
}

// restore replaces the state by a snapshot.
func (m *machine) restore(r io.Reader) error {
	s, err := readSnapshot(bufio.NewReaderSize(r, 1<<20))
	if err != nil {
		return err
	}
	m.state = s
	root := s.capture()
	m.root.Store(root)
	m.stateBytes.Store(s.bytes)
	m.hub.reset(root)
	m.leases.reset(root)
	m.entries.Store(0)
	m.bytes.Store(0)
	return nil
}
