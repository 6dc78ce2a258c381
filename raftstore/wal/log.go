package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/types"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// Log is Raft's log and stable store as a directory of segments.
//
//	meta                    which segments there are, and an index that the log reaches
//	vote                    term and vote, see stable.go
//	<base>-<id>.wal         entries, see segment.go
//	spare                   a file for the next segment
//
// An append is one write and one fdatasync. A crash leaves:
//
//   - in an append: a torn batch behind the last one. It was never acknowledged, and the next append cuts it off.
//   - between a segment that is full and the next: a segment that is more than full.
//   - in a rotation or a truncation: the old meta or the new one, which is renamed into place.
//
// Damage can look like a crash in one place only: in the last batch, which no batch follows. So meta records an index that the log reaches,
// at every rotation, every Close, and after every second without an append. Only the last batch of a log whose process was killed within
// that second can be damaged and be taken for a torn append.
type Log struct {
	dir    string
	wal    *raftwal.WAL
	meta   *metaFile
	stable *stableFile
	filer  *filer

	touched atomic.Int64 // time of the last append
	armed   atomic.Bool  // the timer quiet runs
	quiet   *time.Timer

	mu     sync.Mutex // orders DeleteRange, which lowers meta's index, and note, which raises it
	closed bool
}

// quietTime is after how long without an append meta records where the log ends.
const quietTime = time.Second

const (
	metaName = "meta"
	voteName = "vote"
)

// ErrNotFound is the error for a key that was never set. Raft compares its text.
var ErrNotFound = errors.New("not found")

// Open opens or makes the log in dir. It reads and checks all of it, and returns an error for a log that ends before entry number floor. The
// error names a damaged file, which stays as it is.
func Open(dir string, floor uint64) (*Log, error) { return open(dir, segmentSize, floor) }

// open is Open with segments of size bytes.
func open(dir string, size int, floor uint64) (*Log, error) {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = errors.Join(diskfile.SyncDir(filepath.Dir(dir)), diskfile.SyncDir(dir))
	}
	if err != nil {
		return nil, diskfile.Error(dir, err)
	}
	meta, found, err := openMeta(filepath.Join(dir, metaName))
	if err != nil {
		return nil, err
	}
	w := &Log{dir: dir, meta: meta, filer: &filer{dir: dir, meta: meta, size: int64(size), floor: floor, open: map[*segment]struct{}{}}}
	if err := w.filer.expected(found); err != nil {
		return nil, err
	}
	// meta is written last: without it there never was a log.
	if w.stable, err = openStable(filepath.Join(dir, voteName), !found); err != nil {
		return nil, err
	}
	w.filer.findSpare()
	w.wal, err = raftwal.Open(dir, raftwal.WithMetaStore(meta), raftwal.WithSegmentFiler(w.filer),
		raftwal.WithSegmentSize(size), raftwal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		w.filer.sweeper.Wait()
		return nil, errors.Join(err, w.filer.closeAll(), w.stable.close())
	}
	w.quiet = time.AfterFunc(time.Hour, w.note)
	w.quiet.Stop()
	return w, nil
}

// FirstIndex returns the index of the first entry, 0 when there is none.
func (w *Log) FirstIndex() (uint64, error) { return w.wal.FirstIndex() }

// LastIndex returns the index of the last entry, 0 when there is none.
func (w *Log) LastIndex() (uint64, error) { return w.wal.LastIndex() }

// Checked reports that every entry was checked when the log was opened.
func (w *Log) Checked() bool { return true }

// GetLog reads one entry.
func (w *Log) GetLog(index uint64, l *raft.Log) error { return w.wal.GetLog(index, l) }

// StoreLogs appends entries, synced once.
func (w *Log) StoreLogs(logs []*raft.Log) error {
	if err := w.wal.StoreLogs(logs); err != nil {
		return err
	}
	w.touched.Store(time.Now().UnixNano())
	if w.armed.CompareAndSwap(false, true) {
		w.quiet.Reset(quietTime)
	}
	return nil
}

// DeleteRange removes the entries lo to hi, both included, at either end of the log.
func (w *Log) DeleteRange(lo, hi uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wal.DeleteRange(lo, hi)
}

// Set stores v under k, synced.
func (w *Log) Set(k, v []byte) error { return w.stable.set(k, v) }

// Get returns the value that Set stored under k, ErrNotFound when there is none.
func (w *Log) Get(k []byte) ([]byte, error) {
	v, ok := w.stable.get(k)
	if !ok {
		return nil, ErrNotFound
	}
	return v, nil
}

// note records where the log ends, if nothing was appended for quietTime.
func (w *Log) note() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if d := quietTime - time.Since(time.Unix(0, w.touched.Load())); d > 0 {
		w.quiet.Reset(d)
		return
	}
	w.armed.Store(false)
	w.mark()
}

// mark records in meta where the log ends. It ignores a disk that refuses: meta then has an older index, which finds less damage.
func (w *Log) mark() {
	if last, err := w.wal.LastIndex(); err == nil && w.meta.settle() == nil {
		_ = w.meta.reached(last)
	}
}

// Close records where the log ends, closes the files and joins the goroutines.
func (w *Log) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.quiet.Stop()
	_ = w.filer.trim()
	w.mark()
	err := errors.Join(w.wal.Close(), w.stable.close())
	w.filer.closing.Store(true)
	w.filer.sweeper.Wait()
	return err
}

// filer makes and opens segment files for raft-wal.
type filer struct {
	dir  string
	meta *metaFile
	size int64 // of a segment that is full
	// floor is an entry that was committed, which the log must reach.
	floor uint64

	mu       sync.Mutex
	open     map[*segment]struct{}
	doomed   []string // files to remove
	sweeping bool
	spare    bool // there is a spare file
	sparing  bool // a spare file is being made
	sweeper  sync.WaitGroup
	closing  atomic.Bool
}

var _ types.SegmentFiler = (*filer)(nil)

func (f *filer) segment(info types.SegmentInfo) *segment {
	s := &segment{
		path:   filepath.Join(f.dir, segmentName(info.BaseIndex, info.ID)),
		info:   info,
		full:   f.size,
		key:    segmentKey{nonce: f.meta.state().Nonce, base: info.BaseIndex, id: info.ID},
		settle: f.meta.settle, gone: f.forget, openNew: f.openNew, half: f.wantSpare,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[s] = struct{}{}
	return s
}

func segmentName(base, id uint64) string {
	return fmt.Sprintf("%020d-%016x%s", base, id, segmentSuffix)
}

// Create implements types.SegmentFiler. It cannot fail: raft-wal has told the meta store of the segment already, and could not recover from
// an error here.
func (f *filer) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	return f.segment(info), nil
}

// RecoverTail implements types.SegmentFiler.
func (f *filer) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	last := max(f.meta.state().Last, f.floor)
	s := f.segment(info)
	err := s.load(os.O_RDWR)
	if err == nil {
		// A process that was killed may have written batches without a sync; they count from here on.
		if err = s.f.Sync(); err != nil {
			err = diskfile.Error(s.path, err)
		}
	}
	if errors.Is(err, fs.ErrNotExist) && last < info.BaseIndex {
		return nil, err // nothing was ever appended to it
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, diskfile.Corrupt(s.path, errors.New("missing"))
	}
	if err != nil {
		return nil, err
	}
	if end := info.BaseIndex - 1 + uint64(len(s.offsets)); end < last {
		return nil, diskfile.Corrupt(s.path, fmt.Errorf("ends at entry %d, not %d", end, last))
	}
	return s, nil
}

// Open implements types.SegmentFiler.
func (f *filer) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	s := f.segment(info)
	err := s.load(os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, diskfile.Corrupt(s.path, errors.New("missing"))
	}
	if err != nil {
		return nil, err
	}
	if end := info.BaseIndex - 1 + uint64(len(s.offsets)); end < info.MaxIndex {
		return nil, diskfile.Corrupt(s.path, fmt.Errorf("ends at entry %d, not %d", end, info.MaxIndex))
	}
	return s, nil
}

// List implements types.SegmentFiler.
func (f *filer) List() (map[uint64]uint64, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, diskfile.Error(f.dir, err)
	}
	found := map[uint64]uint64{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), segmentSuffix) {
			continue
		}
		var base, id uint64
		if n, err := fmt.Sscanf(e.Name(), "%020d-%016x"+segmentSuffix, &base, &id); n != 2 || err != nil || e.Name() != segmentName(base, id) {
			return nil, diskfile.Corrupt(filepath.Join(f.dir, e.Name()), errors.New("not a segment's name"))
		}
		found[id] = base
	}
	return found, nil
}

// expected returns an error for segments that meta cannot know. raft-wal would take them for leftovers of a truncation and remove them.
func (f *filer) expected(meta bool) error {
	found, err := f.List()
	if err != nil {
		return err
	}
	next := f.meta.state().NextSegmentID
	for id, base := range found {
		switch {
		case !meta:
			return diskfile.Corrupt(f.meta.path, errors.New("missing"))
		case id >= next:
			return diskfile.Corrupt(f.meta.path, fmt.Errorf("older than segment %s", segmentName(base, id)))
		}
	}
	return nil
}

// Delete implements types.SegmentFiler. It is called while appends wait, so the files are removed in the background. Files that a crash
// leaves are removed when the log is opened.
func (f *filer) Delete(base, id uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doomed = append(f.doomed, filepath.Join(f.dir, segmentName(base, id)))
	if !f.sweeping {
		f.sweeping = true
		f.sweeper.Go(f.sweep)
	}
	return nil
}

// sweep removes the files that Delete was given. A file that cannot be removed now is removed when the log is opened.
func (f *filer) sweep() {
	for {
		f.mu.Lock()
		doomed := f.doomed
		f.doomed, f.sweeping = nil, len(doomed) > 0
		f.mu.Unlock()
		if len(doomed) == 0 {
			return
		}
		for _, path := range doomed {
			f.dispose(path)
		}
	}
}

// each calls fn with every segment that was opened and not closed.
func (f *filer) each(fn func(*segment) error) error {
	f.mu.Lock()
	all := slices.Collect(maps.Keys(f.open))
	f.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, fn(s))
	}
	return errors.Join(errs...)
}

func (f *filer) forget(s *segment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, s)
}

func (f *filer) closeAll() error { return f.each((*segment).Close) }

// trim gives back reserved space, so that the files of a closed log are as long as their content.
func (f *filer) trim() error { return f.each((*segment).trim) }
