package snapshot

import (
	"bufio"
	"cmp"
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
	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// The files of a snapshot, in its directory.
const (
	metaFile  = "meta.json" // raft.SnapshotMeta
	stateFile = "state.bin" // see mvcc.WriteSnapshotAt
	tmpSuffix = ".tmp"      // of a directory that is being written or removed
)

// Files keeps snapshots beside the log, each in a directory named <term>-<index>-<milliseconds>.
//
// The layout is the one of Raft's own store. Files differs in how it writes: a few bytes at a time that are on disk before the
// next, with a pause as long while the log is written, so that an append never waits behind gigabytes of a snapshot's dirty pages.
// A snapshot that another server sends is checked while it comes, before it exists here: see arrival.
type Files struct {
	path string
	keep int
	log  *slog.Logger
	// applied returns how far the log has come, which says whether the log is written now.
	applied func() uint64
	whole   sync.Map // IDs of snapshots that this process has written or read to the end
}

var _ raft.SnapshotStore = (*Files)(nil)

// Options say how Open opens a directory of snapshots.
type Options struct {
	Path string
	// Keep is how many snapshots stay; older ones are removed when a new one is written.
	Keep   int
	Logger *slog.Logger
	// Applied returns the index of the last applied entry; nil: writing never assumes that the log is idle.
	Applied func() uint64
}

// Open makes the directory if it is not there and checks that it can be written to.
func Open(o Options) (*Files, error) {
	if err := os.MkdirAll(o.Path, 0o700); err != nil {
		return nil, diskfile.Error(o.Path, err)
	}
	probe := filepath.Join(o.Path, "probe.tmp")
	err := os.WriteFile(probe, nil, 0o600)
	if err == nil {
		err = errors.Join(os.Remove(probe), diskfile.SyncDir(filepath.Dir(o.Path)))
	}
	if err != nil {
		return nil, diskfile.Error(o.Path, err)
	}
	return &Files{path: o.Path, keep: o.Keep, log: o.Logger, applied: o.Applied}, nil
}

// Create implements raft.SnapshotStore.
func (s *Files) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("%w: Raft asks for snapshots of version %d", errdefs.ErrInvalid, version)
	}
	k := &Sink{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixMilli()),
		Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex,
	}}
	k.path = filepath.Join(s.path, k.meta.ID+tmpSuffix)
	if err := os.MkdirAll(k.path, 0o700); err != nil {
		return nil, diskfile.Error(k.path, err)
	}
	f, err := os.OpenFile(filepath.Join(k.path, stateFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, diskfile.Error(k.path, errors.Join(err, os.RemoveAll(k.path)))
	}
	k.file = &diskfile.PacedFile{File: f, Applied: s.applied}
	k.w = bufio.NewWriterSize(k.file, diskfile.PaceBytes)
	return k, nil
}

// List implements raft.SnapshotStore: the newest first.
func (s *Files) List() ([]*raft.SnapshotMeta, error) {
	names, err := Names(s.path)
	if err != nil {
		return nil, err
	}
	var list []*raft.SnapshotMeta
	for _, n := range names {
		m, err := s.readMeta(n)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *raft.SnapshotMeta) int {
		return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Index, a.Index), cmp.Compare(b.ID, a.ID))
	})
	return list, nil
}

func (s *Files) readMeta(name string) (*raft.SnapshotMeta, error) {
	path := filepath.Join(s.path, name, metaFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, diskfile.Corrupt(path, err)
	}
	m, err := decodeMeta(name, b)
	if err != nil {
		return nil, diskfile.Corrupt(path, err)
	}
	if st, err := os.Stat(s.StatePath(name)); err == nil {
		m.Size = st.Size()
	}
	return m, nil
}

// StatePath returns the path of a snapshot's state.
func (s *Files) StatePath(id string) string { return filepath.Join(s.path, id, stateFile) }

// decodeMeta reads a snapshot's description and compares it with the name of its directory.
func decodeMeta(name string, b []byte) (*raft.SnapshotMeta, error) {
	m := new(raft.SnapshotMeta)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	if m.ID != name || !strings.HasPrefix(name, fmt.Sprintf("%d-%d-", m.Term, m.Index)) {
		return nil, fmt.Errorf("%w: says %s, index %d, term %d", errdefs.ErrCorrupt, m.ID, m.Index, m.Term)
	}
	if m.ConfigurationIndex > m.Index || len(m.Configuration.Servers) == 0 {
		return nil, fmt.Errorf("%w: has a cluster of %d servers at index %d", errdefs.ErrCorrupt, len(m.Configuration.Servers), m.ConfigurationIndex)
	}
	return m, nil
}

// MarkWhole notes that the caller has read snapshot id to its end and found it whole.
func (s *Files) MarkWhole(id string) { s.whole.Store(id, nil) }

// Open implements raft.SnapshotStore. A snapshot is checked to its end once before any of it is sent to another server, which
// checks it again.
func (s *Files) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, err := s.readMeta(id)
	if err != nil {
		return nil, nil, err
	}
	path := s.StatePath(id)
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
	s.MarkWhole(id)
	return m, f, nil
}

// removeOld removes the snapshots that are older than those that are kept.
func (s *Files) removeOld() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	for _, m := range list[min(s.keep, len(list)):] {
		// The rename comes first: a snapshot that is half removed must not be listed.
		old := filepath.Join(s.path, m.ID)
		s.whole.Delete(m.ID)
		if err := errors.Join(os.Rename(old, old+tmpSuffix), shrink(filepath.Join(old+tmpSuffix, stateFile)), os.RemoveAll(old+tmpSuffix)); err != nil {
			return err
		}
	}
	return nil
}

// shrinkBytes is how much of a file shrink gives back at once.
const shrinkBytes = 64 << 20

// shrink gives a file's space back in pieces, because the file system makes other writers wait while it frees a large file.
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
