package wal

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// The next segment is a file whose blocks were all written before: an old segment, or a file of zeros that is made when the current segment
// is half full. Syncing an append to it writes the entry's blocks only. Blocks that were only allocated need the file system's journal, and
// wait there for other writes (BenchmarkLatency). Old content does no harm: checksums are seeded with base and ID.
const spareName = "spare"

func (f *filer) sparePath() string { return filepath.Join(f.dir, spareName) }

// findSpare notes whether there is a spare file from before.
func (f *filer) findSpare() {
	_ = os.Remove(f.sparePath() + ".tmp")
	st, err := os.Stat(f.sparePath())
	f.spare = err == nil && st.Size() >= f.size
}

// openNew makes the file of a new segment, from the spare file if there is one, and returns how much of it is reserved.
func (f *filer) openNew(path string) (*os.File, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spare {
		f.spare = false
		if err := os.Rename(f.sparePath(), path); err != nil {
			return nil, 0, err
		}
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, err
	}
	st, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, st.Size(), nil
}

// wantSpare starts making a spare file, unless there is one.
func (f *filer) wantSpare() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spare || f.sparing || f.closing.Load() {
		return
	}
	f.sparing = true
	f.sweeper.Go(func() {
		err := f.makeSpare()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sparing, f.spare = false, f.spare || err == nil
	})
}

var errClosing = errors.New("closing")

// makeSpare writes a file of zeros, at a pace that leaves the disk to the log.
func (f *filer) makeSpare() (err error) {
	tmp := f.sparePath() + ".tmp"
	file, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := &diskfile.PacedFile{File: file}
	zero := make([]byte, diskfile.PaceBytes)
	for w.Size < f.size && err == nil {
		if _, err = w.Write(zero); f.closing.Load() {
			err = errClosing
		}
	}
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(tmp, f.sparePath())
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// dispose removes a segment's file, or keeps it as the spare file.
func (f *filer) dispose(path string) {
	if !f.keepAsSpare(path) {
		_ = os.Remove(path) // slow for a large file; a new segment must not wait for it
	}
}

func (f *filer) keepAsSpare(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	st, err := os.Stat(path)
	if err != nil || st.Size() < f.size || f.spare || f.sparing {
		return false
	}
	f.spare = os.Rename(path, f.sparePath()) == nil
	return f.spare
}
