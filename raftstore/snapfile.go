package raftstore

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// snapshotFiles keeps snapshots beside the log, each in a directory of its own
// with a description and the state. It differs from Raft's own store, whose
// layout it shares, in how it writes: a few bytes at a time that are on disk
// before the next, with a pause as long while the log is written, so that an
// append never stands behind gigabytes of somebody else's dirty pages. And what
// another peer sends is checked while it comes, before there is a snapshot: see
// arrival.
//
//	<term>-<index>-<milliseconds>/meta.json   raft.SnapshotMeta
//	<term>-<index>-<milliseconds>/state.bin   see writeSnapshotAt
//	*.tmp                                     being written, or left by a crash
type snapshotFiles struct {
	path string
	keep int
	log  *slog.Logger
	// applied is how far the log has come, which says whether it is written now;
	// nil: it always is.
	applied func() uint64
	// whole are the IDs of snapshots that this process has written or read to
	// the end.
	whole sync.Map
}

var _ raft.SnapshotStore = (*snapshotFiles)(nil)

const (
	// shrinkBytes is how much of a file is given back at once.
	shrinkBytes = 64 << 20
)

// openSnapshotFiles makes path if it is not there and checks that it can be
// written to.
func openSnapshotFiles(path string, keep int, log *slog.Logger) (*snapshotFiles, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, diskfile.Error(path, err)
	}
	probe := filepath.Join(path, "probe.tmp")
	err := os.WriteFile(probe, nil, 0o600)
	if err == nil {
		err = errors.Join(os.Remove(probe), diskfile.SyncDir(filepath.Dir(path)))
	}
	if err != nil {
		return nil, diskfile.Error(path, err)
	}
	return &snapshotFiles{path: path, keep: keep, log: log}, nil
}

// Create implements raft.SnapshotStore.
func (s *snapshotFiles) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("%w: Raft asks for snapshots of version %d", ErrInvalid, version)
	}
	k := &snapshotSink{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixMilli()),
		Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex,
	}}
	k.path = filepath.Join(s.path, k.meta.ID+".tmp")
	if err := os.MkdirAll(k.path, 0o700); err != nil {
		return nil, diskfile.Error(k.path, err)
	}
	f, err := os.OpenFile(filepath.Join(k.path, "state.bin"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, diskfile.Error(k.path, errors.Join(err, os.RemoveAll(k.path)))
	}
	k.file = &diskfile.PacedFile{File: f, Applied: s.applied}
	k.w = bufio.NewWriterSize(k.file, diskfile.PaceBytes)
	return k, nil
}

// List implements raft.SnapshotStore: the newest first.
func (s *snapshotFiles) List() ([]*raft.SnapshotMeta, error) {
	names, err := snapshotNames(s.path, false)
	if err != nil {
		return nil, err
	}
	var list []*raft.SnapshotMeta
	for _, n := range names {
		m, err := s.describe(n)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *raft.SnapshotMeta) int {
		switch {
		case a.Term != b.Term:
			return compareUint(b.Term, a.Term)
		case a.Index != b.Index:
			return compareUint(b.Index, a.Index)
		}
		return strings.Compare(b.ID, a.ID)
	})
	return list, nil
}

func compareUint(a, b uint64) int {
	if a < b {
		return -1
	}
	return 1
}

func (s *snapshotFiles) describe(name string) (*raft.SnapshotMeta, error) {
	path := filepath.Join(s.path, name, "meta.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, diskfile.Corrupt(path, err)
	}
	m, err := decodeSnapshotMeta(name, b)
	if err != nil {
		return nil, diskfile.Corrupt(path, err)
	}
	if st, err := os.Stat(filepath.Join(s.path, name, "state.bin")); err == nil {
		m.Size = st.Size()
	}
	return m, nil
}

// decodeSnapshotMeta reads a snapshot's description and checks it against its
// name.
func decodeSnapshotMeta(name string, b []byte) (*raft.SnapshotMeta, error) {
	m := new(raft.SnapshotMeta)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if m.ID != name || !strings.HasPrefix(name, fmt.Sprintf("%d-%d-", m.Term, m.Index)) {
		return nil, fmt.Errorf("%w: says %s, index %d, term %d", ErrCorrupt, m.ID, m.Index, m.Term)
	}
	if m.ConfigurationIndex > m.Index || len(m.Configuration.Servers) == 0 {
		return nil, fmt.Errorf("%w: has a cluster of %d servers at index %d", ErrCorrupt, len(m.Configuration.Servers), m.ConfigurationIndex)
	}
	return m, nil
}

// Open implements raft.SnapshotStore. The whole snapshot is checked before any
// of it is given to another peer, once: that peer checks it again.
func (s *snapshotFiles) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, err := s.describe(id)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(s.path, id, "state.bin")
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, diskfile.Corrupt(path, err)
	}
	if _, ok := s.whole.Load(id); ok {
		return m, f, nil
	}
	if _, err = mvcc.VerifySnapshot(f); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	s.whole.Store(id, nil)
	return m, f, nil
}

// reap removes what is older than the snapshots that are kept.
func (s *snapshotFiles) reap() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	for _, m := range list[min(s.keep, len(list)):] {
		// Out of the way first: what is half gone is no snapshot.
		old := filepath.Join(s.path, m.ID)
		s.whole.Delete(m.ID)
		if err := errors.Join(os.Rename(old, old+".tmp"), shrink(filepath.Join(old+".tmp", "state.bin")), os.RemoveAll(old+".tmp")); err != nil {
			return err
		}
	}
	return nil
}

// shrink gives a file's space back in pieces, because the file system keeps
// others waiting while it frees a large one.
func shrink(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil {
		for size := st.Size(); err == nil && size > 0; {
			size = max(0, size-shrinkBytes)
			if err = f.Truncate(size); size > 0 {
				time.Sleep(diskfile.PaceRest)
			}
		}
	}
	return errors.Join(err, f.Close())
}

// snapshotSink writes one snapshot, which exists from Close on.
type snapshotSink struct {
	store *snapshotFiles
	meta  raft.SnapshotMeta
	path  string
	file  *diskfile.PacedFile
	w     *bufio.Writer
	own   bool     // this process makes what is written; set before the first Write
	check *arrival // of what comes from elsewhere; nil before the first Write
	done  bool
}

// ID implements raft.SnapshotSink.
func (k *snapshotSink) ID() string { return k.meta.ID }

// Write implements io.Writer.
func (k *snapshotSink) Write(b []byte) (int, error) {
	if !k.own {
		if k.check == nil {
			k.check = newArrival()
		}
		if err := k.check.feed(b); err != nil {
			return 0, err
		}
	}
	return k.w.Write(b)
}

// Close implements raft.SnapshotSink.
func (k *snapshotSink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	if !k.own && k.check == nil {
		k.check = newArrival() // nothing came, which is no snapshot either
	}
	if err := k.check.finish(nil); err != nil {
		return errors.Join(err, k.file.File.Close(), os.RemoveAll(k.path))
	}
	err := errors.Join(k.w.Flush(), k.file.File.Sync(), k.file.File.Close())
	if err == nil {
		err = k.publish()
	}
	if err != nil {
		return diskfile.Error(k.path, errors.Join(err, os.RemoveAll(k.path)))
	}
	k.store.whole.Store(k.meta.ID, nil)
	if err := k.store.reap(); err != nil {
		k.store.log.Warn("old snapshots could not be removed", "dir", k.store.path, "error", err)
	}
	return nil
}

func (k *snapshotSink) publish() error {
	k.meta.Size = k.file.Size
	b, err := json.Marshal(k.meta)
	if err != nil {
		return err
	}
	if err := diskfile.WriteSynced(filepath.Join(k.path, "meta.json"), append(b, '\n')); err != nil {
		return err
	}
	return errors.Join(os.Rename(k.path, filepath.Join(k.store.path, k.meta.ID)), diskfile.SyncDir(k.store.path))
}

// Cancel implements raft.SnapshotSink.
func (k *snapshotSink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	_ = k.check.finish(errCancelled) // which is what it says
	return errors.Join(k.file.File.Close(), os.RemoveAll(k.path))
}

var errCancelled = errors.New("raftstore: snapshot cancelled")

// arrival checks a snapshot while it is written, in a goroutine that ends with
// finish.
type arrival struct {
	w    *io.PipeWriter
	done chan error // buffered
}

func newArrival() *arrival {
	r, w := io.Pipe()
	a := &arrival{w: w, done: make(chan error, 1)}
	go func() {
		_, err := mvcc.VerifySnapshot(r)
		if err != nil {
			err = fmt.Errorf("snapshot that was sent: %w", err)
		}
		r.CloseWithError(err)
		a.done <- err
	}()
	return a
}

// feed hands on the next bytes, or says what was wrong with those before.
func (a *arrival) feed(b []byte) error {
	_, err := a.w.Write(b)
	return err
}

// finish says whether what was fed is a whole snapshot; with an error, nobody
// wants to know.
func (a *arrival) finish(err error) error {
	if a == nil {
		return nil
	}
	a.w.CloseWithError(err)
	return <-a.done
}
