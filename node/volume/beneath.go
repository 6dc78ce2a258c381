package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// openBeneath opens rel below base as an O_PATH descriptor. The kernel refuses any path, symlinks included, that
// leaves base on the way.
func openBeneath(base, rel string) (int, error) {
	root, err := unix.Open(base, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: base, Err: err}
	}
	defer unix.Close(root)
	return openAtBeneath(root, rel, unix.O_PATH)
}

func openAtBeneath(root int, rel string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(root, rel, &how)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // a rename happened while the kernel resolved ".."
		}
		if err != nil {
			return -1, &os.PathError{Op: "openat2", Path: rel, Err: err}
		}
		return fd, nil
	}
}

// makeBeneath makes the directories of rel below base that are missing, with mode, and never outside base.
func makeBeneath(base, rel string, mode uint32) error {
	root, err := unix.Open(base, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: base, Err: err}
	}
	defer unix.Close(root)
	parent, err := unix.Dup(root)
	if err != nil {
		return err
	}
	defer func() { unix.Close(parent) }()
	sofar := ""
	for _, name := range strings.Split(filepath.Clean(rel), "/") {
		sofar = filepath.Join(sofar, name)
		fd, err := openAtBeneath(root, sofar, unix.O_PATH)
		if errors.Is(err, unix.ENOENT) {
			fd, err = makeDirAt(parent, name, mode)
		}
		if err != nil {
			return err
		}
		unix.Close(parent)
		parent = fd
	}
	return nil
}

func makeDirAt(parent int, name string, mode uint32) (int, error) {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, &os.PathError{Op: "mkdirat", Path: name, Err: err}
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "openat", Path: name, Err: err}
	}
	if err := unix.Fchmod(fd, mode&0o7777); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "fchmod", Path: name, Err: err}
	}
	return fd, nil
}

// readBeneath reads the regular file rel below base, at most limit bytes.
func readBeneath(base, rel string, limit int64) ([]byte, error) {
	root, err := unix.Open(base, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: base, Err: err}
	}
	defer unix.Close(root)
	fd, err := openAtBeneath(root, rel, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", rel)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", rel, limit)
	}
	return data, nil
}
