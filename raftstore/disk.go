package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// disk is the log and the stable store of Raft on one bbolt file, with what
// Raft expects others to add: a checksum over every entry, and a disk that is
// full or read-only as a state that passes instead of an end.
//
// Raft panics when it cannot store its term, so disk lets that one write wait:
// the peer leads nothing meanwhile, reads go on, writes are refused with the
// fault, and when the disk takes writes again Raft goes on where it was.
type disk struct {
	store *raftboltdb.BoltStore
	path  string
	log   *slog.Logger
	fault atomic.Pointer[diskFault]
	live  atomic.Bool                          // Raft runs: waiting is better than failing
	stop  chan struct{}                        // closed before Raft is shut down
	warm  atomic.Pointer[map[uint64]*raft.Log] // read at start, for Raft to read again; nil once it runs
}

type diskFault struct{ err error }

var (
	_ raft.LogStore    = (*disk)(nil)
	_ raft.StableStore = (*disk)(nil)
)

// deleteChunk bounds how many entries one bbolt transaction removes, so that
// dropping old log after a snapshot does not hold up writes.
const deleteChunk = 256

func openDisk(path string, log *slog.Logger) (*disk, error) {
	s, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout:        time.Second,
			NoFreelistSync: true,
			FreelistType:   bbolt.FreelistMapType,
		},
	})
	if err != nil {
		return nil, openError(path, err)
	}
	return &disk{store: s, path: path, log: log, stop: make(chan struct{})}, nil
}

// openError says what it means that path could not be opened.
func openError(path string, err error) error {
	switch {
	case errors.Is(err, bbolt.ErrTimeout):
		return fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, bbolt.ErrInvalid), errors.Is(err, bbolt.ErrChecksum), errors.Is(err, bbolt.ErrVersionMismatch):
		return corrupt(path, err)
	}
	return diskError(path, err)
}

// diskError gives a failed write of path its sentinel.
func diskError(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %s: free some space", ErrDiskFull, path)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %s: mount it writable", ErrDiskReadOnly, path)
	}
	return fmt.Errorf("%w: %s: %w", ErrDisk, path, err)
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
	err = diskError(d.path, err)
	if d.fault.Swap(&diskFault{err}) == nil {
		d.log.Error("log cannot be written, writes are refused until it can", "file", d.path, "error", err)
	}
	return err
}

// StoreLogs implements raft.LogStore.
func (d *disk) StoreLogs(logs []*raft.Log) error {
	for _, l := range logs {
		if l.Extensions == nil {
			l.Extensions = logSum(l)
		}
	}
	return d.outcome(d.store.StoreLogs(logs))
}

// StoreLog implements raft.LogStore.
func (d *disk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

// logSum is the CRC-32C over what makes an entry.
func logSum(l *raft.Log) []byte {
	var head [17]byte
	binary.BigEndian.PutUint64(head[:8], l.Index)
	binary.BigEndian.PutUint64(head[8:16], l.Term)
	head[16] = byte(l.Type)
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, l.Data)
	return binary.BigEndian.AppendUint32(nil, sum)
}

// GetLog implements raft.LogStore.
func (d *disk) GetLog(index uint64, l *raft.Log) error {
	if warm := d.warm.Load(); warm != nil {
		if w := (*warm)[index]; w != nil {
			*l = *w
			return nil
		}
	}
	if err := d.store.GetLog(index, l); err != nil {
		return err
	}
	if string(l.Extensions) != string(logSum(l)) || l.Index != index {
		return corrupt(d.path, fmt.Errorf("log entry %d does not match its checksum", index))
	}
	return nil
}

// FirstIndex implements raft.LogStore.
func (d *disk) FirstIndex() (uint64, error) { return d.store.FirstIndex() }

// LastIndex implements raft.LogStore.
func (d *disk) LastIndex() (uint64, error) { return d.store.LastIndex() }

// DeleteRange implements raft.LogStore.
func (d *disk) DeleteRange(lo, hi uint64) error {
	for lo <= hi {
		end := min(lo+deleteChunk-1, hi)
		if err := d.store.DeleteRange(lo, end); err != nil {
			return d.outcome(err)
		}
		lo = end + 1
	}
	return nil
}

// Set implements raft.StableStore.
func (d *disk) Set(k, v []byte) error {
	return d.insist(func() error { return d.store.Set(k, v) })
}

// SetUint64 implements raft.StableStore.
func (d *disk) SetUint64(k []byte, v uint64) error {
	return d.insist(func() error { return d.store.SetUint64(k, v) })
}

// insist repeats a write until the disk takes it.
func (d *disk) insist(write func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
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
func (d *disk) GetUint64(k []byte) (uint64, error) { return d.store.GetUint64(k) }

func (d *disk) close() error { return d.store.Close() }
