package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/wal"
)

// disk is the log and the stable store of Raft, with a disk that is full or
// read-only as a state that passes instead of an end.
//
// Raft panics when it cannot store its term, and is confused when it cannot write
// what replaces the end of the log, so disk lets these two writes wait: the peer
// leads nothing meanwhile, reads go on, writes are refused with the
// fault, and when the disk takes writes again Raft goes on where it was.
type disk struct {
	store logFile
	path  string
	log   *slog.Logger
	fault atomic.Pointer[diskFault]
	live  atomic.Bool                          // Raft runs: waiting is better than failing
	stop  chan struct{}                        // closed before Raft is shut down
	term  sync.RWMutex                         // written to while the term changes; see heartbeats
	warm  atomic.Pointer[map[uint64]*raft.Log] // read at start, for Raft to read again; nil once it runs
	// recent spares the leader reading what it just wrote for each follower.
	recent recentLogs
	// before is the last entry of the snapshot that came last, without its data:
	// see boundary.
	before atomic.Pointer[raft.Log]
	// tail is what Raft has stored and the store has not yet.
	tail    *tail
	overlap atomic.Pointer[overlap] // nil: StoreLogs waits for the disk
	// cut: the end of the log was removed and not written anew yet. Raft does not
	// know that the log is shorter until the next append succeeds, and would
	// acknowledge what is gone; so that append waits for the disk.
	cut atomic.Bool
}

// logFile is where disk keeps things: a wal.Log, a boltLog, or one that fails on
// purpose.
type logFile interface {
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	GetLog(index uint64, l *raft.Log) error
	StoreLogs(logs []*raft.Log) error
	DeleteRange(lo, hi uint64) error
	Set(k, v []byte) error
	Get(k []byte) ([]byte, error)
	// Tail is the index that the last entry must have.
	Tail() (uint64, error)
	Close() error
}

type diskFault struct{ err error }

var (
	_ raft.LogStore          = (*disk)(nil)
	_ raft.MonotonicLogStore = (*disk)(nil)
	_ raft.StableStore       = (*disk)(nil)
)

// openDisk opens or makes the log at path: a directory of segments or, when
// bolt is set, a bbolt file.
func openDisk(path string, bolt bool, cfg *Config) (*disk, error) {
	var store logFile
	var err error
	if bolt {
		store, err = openBoltFile(path)
	} else {
		store, err = wal.Open(path, readCommitMark(filepath.Dir(path)))
	}
	if err != nil {
		return nil, openError(path, err)
	}
	if cfg.wrapLog != nil {
		store = cfg.wrapLog(store)
	}
	return newDisk(store, path, cfg), nil
}

func newDisk(store logFile, path string, cfg *Config) *disk {
	return &disk{store: store, path: path, log: cfg.Logger, stop: make(chan struct{}), tail: newTail()}
}

// openBoltFile opens or makes a bbolt log, having read all of it.
func openBoltFile(path string) (logFile, error) {
	if st, err := os.Stat(path); err == nil && st.Size() > 0 {
		if err := scrub(path); err != nil {
			return nil, err
		}
	}
	return openBoltLog(path)
}

// openError says what it means that path could not be opened: a refusal of the
// system's, or else damage.
func openError(path string, err error) error {
	var no syscall.Errno
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrNewerVersion), errors.Is(err, ErrDisk), errors.Is(err, ErrDiskFull), errors.Is(err, ErrDiskReadOnly):
		return err
	case errors.As(err, &no):
		return diskfile.Error(path, err)
	}
	return diskfile.Corrupt(path, err)
}

// refused returns why writes are refused now, nil when they are not.
func (d *disk) refused() error {
	if f := d.fault.Load(); f != nil {
		return f.err
	}
	return nil
}

// outcome remembers whether the disk took the last write.
func (d *disk) outcome(err error) error {
	if err == nil {
		if d.fault.Swap(nil) != nil {
			d.log.Info("log is writable again", "file", d.path)
		}
		return nil
	}
	err = diskfile.Error(d.path, err)
	if d.fault.Swap(&diskFault{err}) == nil {
		d.log.Error("log cannot be written, writes are refused until it can", "file", d.path, "error", err)
	}
	return err
}

// StoreLogs implements raft.LogStore. On a leader with followers it returns while
// the entries are being written: see tail.
func (d *disk) StoreLogs(logs []*raft.Log) error {
	if d.mayLag(logs) {
		return d.storeLater(logs)
	}
	if err := d.tail.drain(); err != nil {
		return diskfile.Error(d.path, err)
	}
	write := func() error { return d.store.StoreLogs(logs) }
	var err error
	if d.cut.Load() {
		err = d.insist(write)
	} else {
		err = d.outcome(write())
	}
	if err == nil {
		d.cut.Store(false)
		d.recent.add(logs)
	}
	return err
}

// StoreLog implements raft.LogStore.
func (d *disk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

// GetLog implements raft.LogStore.
func (d *disk) GetLog(index uint64, l *raft.Log) error {
	if warm := d.warm.Load(); warm != nil {
		if w := (*warm)[index]; w != nil {
			*l = *w
			return nil
		}
	}
	if r := d.recent.get(index); r != nil {
		*l = *r
		return nil
	}
	if r := d.tail.get(index); r != nil {
		*l = *r
		return nil
	}
	err := d.store.GetLog(index, l)
	if b := d.before.Load(); b != nil && b.Index == index && errors.Is(err, raft.ErrLogNotFound) {
		*l, err = *b, nil
	}
	return err
}

// FirstIndex implements raft.LogStore.
func (d *disk) FirstIndex() (uint64, error) {
	pending := d.tail.first.Load() // before the store is asked: it may move there
	first, err := d.store.FirstIndex()
	if first == 0 && err == nil {
		first = pending
	}
	return first, err
}

// LastIndex implements raft.LogStore.
func (d *disk) LastIndex() (uint64, error) {
	if last := d.tail.last(); last != 0 {
		return last, nil
	}
	return d.store.LastIndex()
}

// DeleteRange implements raft.LogStore.
func (d *disk) DeleteRange(lo, hi uint64) error {
	if !d.tail.reached(hi + 1) { // the end of what is on disk, or more
		if err := d.tail.drain(); err != nil {
			return diskfile.Error(d.path, err)
		}
	}
	d.recent.drop(lo, hi)
	d.warm.Store(nil)
	last, err := d.store.LastIndex()
	if err != nil {
		return err
	}
	if err := d.store.DeleteRange(lo, hi); err != nil {
		// No fault: writes would be refused, and none would show that the disk
		// takes them again.
		return diskfile.Error(d.path, err)
	}
	if hi >= last {
		d.cut.Store(true)
	}
	return nil
}

// IsMonotonic implements raft.MonotonicLogStore: after a snapshot that leaves a
// gap, Raft empties the log first. It must not when the log goes on behind the
// snapshot: it would take its log for as long as before, and what it has
// acknowledged would be gone. What there conflicts goes with the next append.
func (d *disk) IsMonotonic() bool {
	last, err := d.LastIndex()
	b := d.before.Load()
	return err != nil || b == nil || last <= b.Index
}

// Set implements raft.StableStore. A new term begins when the entries of the last
// one are on disk: see tail.
func (d *disk) Set(k, v []byte) error {
	return d.insist(func() error {
		if err := d.tail.drain(); err != nil {
			return err
		}
		return d.store.Set(k, v)
	})
}

// SetUint64 implements raft.StableStore.
//
// Raft's main goroutine alone changes the term; that of a heartbeat may only set
// it to what it is.
func (d *disk) SetUint64(k []byte, v uint64) error {
	if string(k) != keyTerm {
		return d.Set(k, binary.BigEndian.AppendUint64(nil, v))
	}
	if now, err := d.GetUint64(k); err == nil && now == v {
		return nil
	}
	d.term.Lock()
	defer d.term.Unlock()
	return d.Set(k, binary.BigEndian.AppendUint64(nil, v))
}

// keyTerm is where Raft keeps its current term.
const keyTerm = "CurrentTerm"

// How long it takes until a write that failed is repeated.
const (
	insistFirst = 50 * time.Millisecond
	insistMost  = time.Second
)

// insist repeats a write until the disk takes it.
func (d *disk) insist(write func() error) error {
	for wait := insistFirst; ; wait = min(2*wait, insistMost) {
		err := d.outcome(write())
		if err == nil || !d.live.Load() {
			return err
		}
		select {
		case <-time.After(wait):
		case <-d.stop:
			// Raft must neither believe in a term that is not on disk nor
			// panic: its goroutine ends here, as it would a moment later.
			runtime.Goexit()
		}
	}
}

// Get implements raft.StableStore.
func (d *disk) Get(k []byte) ([]byte, error) { return d.store.Get(k) }

// GetUint64 implements raft.StableStore.
func (d *disk) GetUint64(k []byte) (uint64, error) {
	v, err := d.store.Get(k)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, diskfile.Corrupt(d.path, fmt.Errorf("%q has %d bytes", k, len(v)))
	}
	return binary.BigEndian.Uint64(v), nil
}

func (d *disk) close() error {
	d.settle()
	return d.store.Close()
}
