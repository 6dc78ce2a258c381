package raftstoretest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/wal"
)

// Disk is one server's disk in memory. A write that has returned is durable; of a write under way a crash keeps all, some or
// nothing. It can be slow and it can be full.
type Disk struct {
	mu     sync.Mutex // guards everything; never held while time passes
	rng    *rand.Rand
	live   *handle
	logs   map[uint64]raft.Log
	kv     map[string][]byte
	snaps  []*snapshot // newest first
	refuse error
	pause  [2]time.Duration // least and most time of a write
	fresh  bool
}

// NewDisk returns an empty disk.
func NewDisk(seed1, seed2 uint64) *Disk {
	return &Disk{rng: rand.New(rand.NewPCG(seed1, seed2)), logs: make(map[uint64]raft.Log), kv: make(map[string][]byte), fresh: true,
		pause: [2]time.Duration{100 * time.Microsecond, 2 * time.Millisecond}}
}

// Bootstrap writes what the first start of a cluster of these voters writes.
func (d *Disk) Bootstrap(ids []string) {
	var conf raft.Configuration
	for _, id := range ids {
		conf.Servers = append(conf.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logs[1] = raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}
	d.kv["CurrentTerm"] = []byte{7: 1}
	d.fresh = false
}

// Attached is a disk as one run of a store has it.
type Attached struct {
	File      *handle // a raftlog.File
	Snapshots raft.SnapshotStore
	Fresh     bool // nothing was ever written to the disk
}

// Attach gives the disk to a new run of a store and takes it from the run before. Each write first calls awake, which may block
// until dead is closed.
func (d *Disk) Attach(awake func(dead <-chan struct{})) Attached {
	d.Crash()
	d.mu.Lock()
	defer d.mu.Unlock()
	h := &handle{disk: d, busy: make(chan struct{}, 1), dead: make(chan struct{}), awake: awake, logs: d.logs, kv: d.kv}
	d.live = h
	a := Attached{File: h, Snapshots: snapshots{h}, Fresh: d.fresh}
	d.fresh = false
	return a
}

// Crash takes the disk from the run that has it. A write under way is torn.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.live
	if h == nil {
		return
	}
	d.live = nil
	// The run that crashed must not see what the next run writes.
	h.logs, h.kv, h.snaps = maps.Clone(d.logs), maps.Clone(d.kv), slices.Clone(d.snaps)
	if h.pending != nil {
		n := 0
		switch d.rng.IntN(3) {
		case 0:
			n = h.size
		case 1:
			n = d.rng.IntN(h.size + 1)
		}
		h.pending(n)
	}
	close(h.dead)
}

// Holds reports whether a crash now would leave entry number index, of term if
// that is not 0, as such or in a snapshot.
func (d *Disk) Holds(index, term uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.snaps {
		if s.meta.Index >= index {
			return true
		}
	}
	l, ok := d.logs[index]
	return index == 0 || ok && (term == 0 || l.Term == term)
}

// Refuse makes writes fail with err, nil makes them succeed again.
func (d *Disk) Refuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

// Slow decides how long a write takes.
func (d *Disk) Slow(least, most time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pause = [2]time.Duration{least, most}
}

// handle is the disk as one run of a store has it. It implements raftlog.File.
type handle struct {
	disk    *Disk
	busy    chan struct{} // held by the one write under way
	dead    chan struct{} // closed by Crash
	awake   func(dead <-chan struct{})
	pending func(n int) // makes the first n of size parts durable; under disk.mu
	size    int

	// The content it reads: the disk's own, and copies after Crash. Guarded by disk.mu.
	logs  map[uint64]raft.Log
	kv    map[string][]byte
	snaps []*snapshot
}

// list is the snapshots there are; disk.mu is held.
func (h *handle) list() []*snapshot {
	if h.disk.live == h {
		return h.disk.snaps
	}
	return h.snaps
}

// write makes the first size parts of something durable, in a while.
func (h *handle) write(size int, do func(n int)) error {
	select {
	case h.busy <- struct{}{}:
	case <-h.dead:
		return syscall.EIO
	}
	defer func() { <-h.busy }()
	h.awake(h.dead)
	pause, err := h.begin(size, do)
	if err != nil {
		return err
	}
	time.Sleep(pause)
	d := h.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	h.pending = nil
	if d.live != h {
		return syscall.EIO
	}
	do(size)
	return nil
}

func (h *handle) begin(size int, do func(int)) (time.Duration, error) {
	d := h.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.live != h:
		return 0, syscall.EIO
	case d.refuse != nil:
		return 0, d.refuse
	}
	h.pending, h.size = do, size
	return d.pause[0] + time.Duration(d.rng.Int64N(int64(d.pause[1]-d.pause[0])+1)), nil
}

// StoreLogs implements raftlog.File.
func (h *handle) StoreLogs(logs []*raft.Log) error {
	own := make([]raft.Log, len(logs))
	for i, l := range logs {
		own[i] = *l
		own[i].Data = bytes.Clone(l.Data)
	}
	return h.write(len(own), func(n int) {
		for _, l := range own[:n] {
			h.disk.logs[l.Index] = l
		}
	})
}

// DeleteRange implements raftlog.File.
func (h *handle) DeleteRange(lo, hi uint64) error {
	return h.write(1, func(n int) {
		for i := lo; n > 0 && i <= hi; i++ {
			delete(h.disk.logs, i)
		}
	})
}

// Set implements raftlog.File.
func (h *handle) Set(k, v []byte) error {
	k, v = bytes.Clone(k), bytes.Clone(v)
	return h.write(1, func(n int) {
		if n > 0 {
			h.disk.kv[string(k)] = v
		}
	})
}

// Get implements raftlog.File.
func (h *handle) Get(k []byte) ([]byte, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	v, ok := h.kv[string(k)]
	if !ok {
		return nil, wal.ErrNotFound
	}
	return bytes.Clone(v), nil
}

// GetLog implements raftlog.File.
func (h *handle) GetLog(index uint64, l *raft.Log) error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	found, ok := h.logs[index]
	if !ok {
		return raft.ErrLogNotFound
	}
	*l = found
	return nil
}

// FirstIndex implements raftlog.File.
func (h *handle) FirstIndex() (uint64, error) {
	return h.edge(func(a, b uint64) bool { return a < b }), nil
}

// LastIndex implements raftlog.File.
func (h *handle) LastIndex() (uint64, error) {
	return h.edge(func(a, b uint64) bool { return a > b }), nil
}

// Checked implements raftlog.File.
func (h *handle) Checked() bool { return false }

func (h *handle) edge(better func(a, b uint64) bool) (found uint64) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	for i := range h.logs {
		if found == 0 || better(i, found) {
			found = i
		}
	}
	return found
}

func (h *handle) Close() error { return nil }

// keptSnapshots is how many snapshots stay, as in a data directory.
const keptSnapshots = 2

// snapshot is one snapshot that is whole and durable.
type snapshot struct {
	meta raft.SnapshotMeta
	data []byte
}

// snapshots is the snapshot store of one run. It implements
// raft.SnapshotStore.
type snapshots struct{ h *handle }

// Create implements raft.SnapshotStore.
func (s snapshots) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	d := s.h.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return nil, d.refuse
	}
	id := fmt.Sprintf("%d-%d-%d", term, index, d.rng.Uint32())
	return &sink{h: s.h, snap: &snapshot{meta: raft.SnapshotMeta{Version: version, ID: id, Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex}}}, nil
}

// List implements raft.SnapshotStore.
func (s snapshots) List() ([]*raft.SnapshotMeta, error) {
	s.h.disk.mu.Lock()
	defer s.h.disk.mu.Unlock()
	var out []*raft.SnapshotMeta
	for _, snap := range s.h.list() {
		m := snap.meta
		out = append(out, &m)
	}
	return out, nil
}

// Open implements raft.SnapshotStore.
func (s snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.h.disk.mu.Lock()
	defer s.h.disk.mu.Unlock()
	for _, snap := range s.h.list() {
		if snap.meta.ID == id {
			m := snap.meta
			return &m, io.NopCloser(bytes.NewReader(snap.data)), nil
		}
	}
	return nil, nil, errors.New("no such snapshot")
}

// sink is a snapshot while it is written. It implements raft.SnapshotSink.
type sink struct {
	h    *handle
	snap *snapshot
	done bool
}

// Write implements io.Writer.
func (s *sink) Write(b []byte) (int, error) {
	s.snap.data = append(s.snap.data, b...)
	s.snap.meta.Size += int64(len(b))
	return len(b), nil
}

// Close makes the snapshot durable. A crash meanwhile may leave it or not.
func (s *sink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	return s.h.write(1, func(n int) {
		if n == 0 {
			return
		}
		d := s.h.disk
		d.snaps = append(d.snaps, s.snap)
		slices.SortStableFunc(d.snaps, func(a, b *snapshot) int {
			return cmp.Or(cmp.Compare(b.meta.Term, a.meta.Term), cmp.Compare(b.meta.Index, a.meta.Index))
		})
		if len(d.snaps) > keptSnapshots {
			d.snaps = d.snaps[:keptSnapshots]
		}
	})
}

// ID implements raft.SnapshotSink.
func (s *sink) ID() string { return s.snap.meta.ID }

// Cancel implements raft.SnapshotSink.
func (s *sink) Cancel() error { s.done = true; return nil }

// CheckLog does what opening a data directory does before Raft starts. It returns why a store would refuse the disk: an entry is
// missing, or there is a gap between the snapshot and the log.
func (d *Disk) CheckLog() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.logs) == 0 {
		return nil
	}
	var first, last, snap uint64
	for i := range d.logs {
		if first == 0 || i < first {
			first = i
		}
		last = max(last, i)
	}
	if len(d.snaps) > 0 {
		snap = d.snaps[0].meta.Index
	}
	switch {
	case uint64(len(d.logs)) != last-first+1:
		return fmt.Errorf("entries %d to %d are %d", first, last, len(d.logs))
	case first > snap+1:
		return fmt.Errorf("the snapshot reaches entry %d, the log begins at %d", snap, first)
	case last < snap:
		clear(d.logs) // as opening a directory does: the snapshot holds it all
	}
	return nil
}
