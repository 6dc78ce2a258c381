package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/raftfix"
)

// Store is the log and the stable store of Raft.
//
// Raft panics when it cannot store its term, and takes its log for longer than it is when it cannot write what replaces the
// log's end. So Store repeats these two writes until the disk takes them. Meanwhile the server leads nothing, reads go on,
// writes are refused with the disk's error, and when the disk takes writes again Raft goes on where it was.
type Store struct {
	file  File
	path  string
	log   *slog.Logger
	fault atomic.Pointer[diskFault]
	live  atomic.Bool   // Raft runs: failed writes of its main goroutine are repeated
	stop  chan struct{} // closed before Raft is shut down: repeating ends
	term  sync.RWMutex  // held for writing while the term changes
	warm  atomic.Pointer[map[uint64]*raft.Log]
	cache entryCache
	// SnapshotEnd answers for the last entry of the newest snapshot, which the log need not hold.
	SnapshotEnd raftfix.SnapshotEnd
	overlap     *overlap
	leader      atomic.Pointer[Leader] // nil: StoreLogs waits for the disk
	// cut: the end of the log was removed and not written anew yet. Raft does not know that the log is shorter until the next
	// append succeeds, and would acknowledge removed entries; so that append is repeated until the disk takes it.
	cut atomic.Bool
}

// File is where Store keeps the log: a wal.Log, a boltdb file, or a test's.
type File interface {
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	GetLog(index uint64, l *raft.Log) error
	StoreLogs(logs []*raft.Log) error
	DeleteRange(lo, hi uint64) error
	Set(k, v []byte) error
	Get(k []byte) ([]byte, error)
	// Checked reports whether opening the file has read and checked every entry.
	Checked() bool
	Close() error
}

type diskFault struct{ err error }

var (
	_ raft.LogStore          = (*Store)(nil)
	_ raft.MonotonicLogStore = (*Store)(nil)
	_ raft.StableStore       = (*Store)(nil)
	_ raftfix.TermLock       = (*Store)(nil)
)

// New returns a Store that keeps its entries in file. path names the file in errors and log messages.
func New(file File, path string, log *slog.Logger) *Store {
	return &Store{file: file, path: path, log: log, stop: make(chan struct{}), overlap: newOverlap()}
}

// Path returns the path of the log, for messages.
func (s *Store) Path() string { return s.path }

// Checked reports whether opening the log has read and checked every entry.
func (s *Store) Checked() bool { return s.file.Checked() }

// SetRunning says that Raft runs from now on: a write that Raft cannot do without is repeated until the disk takes it.
func (s *Store) SetRunning() { s.live.Store(true) }

// Stop ends the repeating of writes that fail. It comes before Raft is shut down.
func (s *Store) Stop() { close(s.stop) }

// Stopping implements raftfix.TermLock.
func (s *Store) Stopping() <-chan struct{} { return s.stop }

// TryHoldTerm implements raftfix.TermLock.
func (s *Store) TryHoldTerm() (release func(), ok bool) {
	if !s.term.TryRLock() {
		return nil, false
	}
	return s.term.RUnlock, true
}

// SetWarm keeps entries that were read when the log was checked, for Raft to read them again; nil forgets them.
func (s *Store) SetWarm(entries map[uint64]*raft.Log) {
	if entries == nil {
		s.warm.Store(nil)
		return
	}
	s.warm.Store(&entries)
}

// Refused returns the error with which writes are refused now, nil while they are accepted.
func (s *Store) Refused() error {
	if f := s.fault.Load(); f != nil {
		return f.err
	}
	return nil
}

// noteWrite remembers whether the disk took the last write, and returns its error as one of the store's.
func (s *Store) noteWrite(err error) error {
	if err == nil {
		if s.fault.Swap(nil) != nil {
			s.log.Info("the log is writable again, writes are accepted", "file", s.path)
		}
		return nil
	}
	err = diskfile.Error(s.path, err)
	if s.fault.Swap(&diskFault{err}) == nil {
		s.log.Error("the log cannot be written, writes are refused until it can", "file", s.path, "err", err)
	}
	return err
}

// StoreLogs implements raft.LogStore. On a leader with followers it returns while the entries are being written: see overlap.
func (s *Store) StoreLogs(logs []*raft.Log) error {
	if s.mayOverlap(logs) {
		return s.storeBeside(logs)
	}
	if err := s.overlap.drain(); err != nil {
		return diskfile.Error(s.path, err)
	}
	write := func() error { return s.file.StoreLogs(logs) }
	var err error
	if s.cut.Load() {
		err = s.insist(write)
	} else {
		err = s.noteWrite(write())
	}
	if err == nil {
		s.cut.Store(false)
		s.cache.add(logs)
	}
	return err
}

// StoreLog implements raft.LogStore.
func (s *Store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// GetLog implements raft.LogStore.
func (s *Store) GetLog(index uint64, l *raft.Log) error {
	var found *raft.Log
	if warm := s.warm.Load(); warm != nil {
		found = (*warm)[index]
	}
	if found == nil {
		found = s.cache.get(index)
	}
	if found == nil {
		found = s.overlap.get(index)
	}
	if found != nil {
		*l = *found
		return nil
	}
	err := s.file.GetLog(index, l)
	if errors.Is(err, raft.ErrLogNotFound) {
		if end := s.SnapshotEnd.Entry(index); end != nil {
			*l, err = *end, nil
		}
	}
	return err
}

// FirstIndex implements raft.LogStore.
func (s *Store) FirstIndex() (uint64, error) {
	pending := s.overlap.first.Load() // read before the file: the entry may be written meanwhile
	first, err := s.file.FirstIndex()
	if first == 0 && err == nil {
		first = pending
	}
	return first, err
}

// LastIndex implements raft.LogStore.
func (s *Store) LastIndex() (uint64, error) {
	if last := s.overlap.last(); last != 0 {
		return last, nil
	}
	return s.file.LastIndex()
}

// DeleteRange implements raft.LogStore.
func (s *Store) DeleteRange(lo, hi uint64) error {
	if !s.overlap.onDisk(hi + 1) { // the range reaches the end of the file, or further
		if err := s.overlap.drain(); err != nil {
			return diskfile.Error(s.path, err)
		}
	}
	s.cache.drop(lo, hi)
	s.warm.Store(nil)
	last, err := s.file.LastIndex()
	if err != nil {
		return err
	}
	if err := s.file.DeleteRange(lo, hi); err != nil {
		// Not through noteWrite: writes would be refused from then on, and no write would show that the disk works again.
		return diskfile.Error(s.path, err)
	}
	if hi >= last {
		s.cut.Store(true)
	}
	return nil
}

// IsMonotonic implements raft.MonotonicLogStore: see raftfix.SnapshotEnd.MayEmptyLog.
func (s *Store) IsMonotonic() bool {
	last, err := s.LastIndex()
	return err != nil || s.SnapshotEnd.MayEmptyLog(last)
}

// Set implements raft.StableStore. A new term begins only when the entries of the last one are on disk: see overlap.
func (s *Store) Set(k, v []byte) error {
	return s.insist(func() error {
		if err := s.overlap.drain(); err != nil {
			return err
		}
		return s.file.Set(k, v)
	})
}

// SetUint64 implements raft.StableStore. Raft's main goroutine alone changes the term; a heartbeat answered beside it may only
// set the term to what it is: see raftfix.Heartbeats.
func (s *Store) SetUint64(k []byte, v uint64) error {
	if string(k) != keyTerm {
		return s.Set(k, binary.BigEndian.AppendUint64(nil, v))
	}
	if now, err := s.GetUint64(k); err == nil && now == v {
		return nil
	}
	s.term.Lock()
	defer s.term.Unlock()
	return s.Set(k, binary.BigEndian.AppendUint64(nil, v))
}

// keyTerm is the key under which Raft keeps its current term.
const keyTerm = "CurrentTerm"

// retryMin and retryMax bound the delay before a write that failed is repeated.
const (
	retryMin = 50 * time.Millisecond
	retryMax = time.Second
)

// insist repeats a write until the disk takes it. Before Raft runs it tries once.
func (s *Store) insist(write func() error) error {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := s.noteWrite(write())
		if err == nil || !s.live.Load() {
			return err
		}
		select {
		case <-time.After(wait):
		case <-s.stop:
			// Raft must neither believe in a term that is not on disk nor panic. This goroutine is Raft's main goroutine; it
			// ends here instead of a moment later.
			runtime.Goexit()
		}
	}
}

// Get implements raft.StableStore.
func (s *Store) Get(k []byte) ([]byte, error) { return s.file.Get(k) }

// GetUint64 implements raft.StableStore.
func (s *Store) GetUint64(k []byte) (uint64, error) {
	v, err := s.file.Get(k)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, diskfile.Corrupt(s.path, fmt.Errorf("%q has %d bytes, want 8", k, len(v)))
	}
	return binary.BigEndian.Uint64(v), nil
}

// Close waits for the write under way and closes the file.
func (s *Store) Close() error {
	s.settle()
	return s.file.Close()
}
