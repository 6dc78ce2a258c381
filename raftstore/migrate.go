package raftstore

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/raft"
)

// migrateBatch is how many entries are copied with one fsync.
const migrateBatch = 512

// migrateLog turns a bbolt log into a WAL, once. The copy is made beside it and
// renamed into place when it is whole; only then the bbolt file goes. So there
// is a whole log at any time, and a crash means starting over, or removing the
// old one.
func (d *dataDir) migrateLog() error {
	old, made, tmp := d.boltPath(), d.walPath(), d.walPath()+".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return diskError(tmp, err)
	}
	if _, err := os.Stat(old); os.IsNotExist(err) {
		return nil
	}
	if _, err := os.Stat(made); os.IsNotExist(err) {
		if err := copyLog(old, tmp); err != nil {
			return err
		}
		if err := errors.Join(os.Rename(tmp, made), syncDir(d.path)); err != nil {
			return diskError(made, err)
		}
	}
	if err := errors.Join(os.Remove(old), syncDir(d.path)); err != nil {
		return diskError(old, err)
	}
	return nil
}

// copyLog makes a WAL of a bbolt log, having checked every entry of it.
func copyLog(from, to string) (err error) {
	if st, err := os.Stat(from); err == nil && st.Size() == 0 {
		return corrupt(from, errors.New("empty"))
	}
	src, err := openBoltFile(from)
	if err != nil {
		return openError(from, err)
	}
	defer func() { err = errors.Join(err, src.close()) }()
	dst, err := openWALLog(to)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := dst.close(); err == nil && cerr != nil {
			err = diskError(to, cerr)
		}
	}()
	return copyEntries(src.(*boltLog), dst)
}

func copyEntries(src *boltLog, dst *walLog) error {
	stable, err := src.stable()
	if err != nil {
		return corrupt(src.path, err)
	}
	for k, v := range stable {
		if err := dst.Set([]byte(k), v); err != nil {
			return diskError(dst.dir, err)
		}
	}
	first, ferr := src.FirstIndex()
	last, lerr := src.LastIndex()
	tail, terr := src.tail()
	if err := errors.Join(ferr, lerr, terr); err != nil {
		return corrupt(src.path, err)
	}
	if tail != last {
		return corrupt(src.path, fmt.Errorf("ends at entry %d, not %d", last, tail))
	}
	var batch []*raft.Log
	for i := first; i <= last && last > 0; i++ {
		l := new(raft.Log)
		if err := src.GetLog(i, l); err != nil {
			return corrupt(src.path, fmt.Errorf("entry %d cannot be read: %s", i, strings.TrimPrefix(err.Error(), ErrCorrupt.Error()+": ")))
		}
		if batch = append(batch, l); len(batch) == migrateBatch || i == last {
			if err := dst.StoreLogs(batch); err != nil {
				return diskError(dst.dir, err)
			}
			batch = batch[:0]
		}
	}
	return nil
}
