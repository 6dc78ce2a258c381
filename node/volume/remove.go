package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxDescent is how deep removal goes with one open directory a level; deeper ones are moved up first.
const maxDescent = 128

// RemovedPrefix begins the names under which deep parts of a tree are moved beside it.
const RemovedPrefix = ".removed-"

// RemoveTree removes path and everything below it. It follows no symlink and crosses no mount: a mount below path,
// even one of the same file system, is an error and what it shows is left alone.
func RemoveTree(path string) error {
	parent, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(parent)
	r := remover{top: parent, prefix: RemovedPrefix + filepath.Base(path) + "-"}
	if err := r.entry(parent, filepath.Base(path), 0); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	for len(r.deep) > 0 {
		name := r.deep[len(r.deep)-1]
		r.deep = r.deep[:len(r.deep)-1]
		if err := r.entry(parent, name, 0); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return nil
}

type remover struct {
	top    int // directory that holds the tree, and to which deep parts are moved
	prefix string
	moved  int
	deep   []string
}

func (r *remover) entry(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	if depth >= maxDescent {
		return r.moveUp(parent, name)
	}
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(parent, name, &how)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := r.entry(fd, n, depth+1); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}

// moveUp takes a directory out of a tree that is too deep to descend.
func (r *remover) moveUp(parent int, name string) error {
	r.moved++
	to := fmt.Sprintf("%s%d", r.prefix, r.moved)
	if err := unix.Renameat2(parent, name, r.top, to, unix.RENAME_NOREPLACE); err != nil {
		return &os.PathError{Op: "rename", Path: name, Err: err}
	}
	r.deep = append(r.deep, to)
	return nil
}
