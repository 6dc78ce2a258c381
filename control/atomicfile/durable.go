// Package atomicfile owns how a file is replaced so that a crash leaves the old
// content or the new one, never a part: content first, then its name.
package atomicfile

import (
	"os"
	"path/filepath"
)

// Write replaces path, mode 0600, and returns when content and name are on
// disk. On failure path is as it was.
func Write(path string, data []byte) error {
	if err := WriteContent(path, data); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteContent is Write whose name lasts only after the next SyncDir of its
// directory, for those who replace several files.
func WriteContent(path string, data []byte) error { return replace(path, data, true) }

// WriteCopy replaces path as a whole, for what can be made again from another
// file: a crash may lose it.
func WriteCopy(path string, data []byte) error { return replace(path, data, false) }

func replace(path string, data []byte, sync bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails when the rename below succeeded
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// SyncDir makes the names in dir last.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
