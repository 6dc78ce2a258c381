package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The bits that fsGroup adds to the mode of a file, of a file in a read-only volume, and of a directory.
const (
	groupReadWrite = 0o660
	groupRead      = 0o440
	groupSearch    = 0o110
)

// grouped returns the mode that fsGroup gives to what had mode.
func grouped(mode uint32, dir, readOnly bool) uint32 {
	add := uint32(groupReadWrite)
	if readOnly {
		add = groupRead
	}
	if dir {
		add |= unix.S_ISGID | groupSearch
	}
	return mode&0o7777 | add
}

// ownTree gives root and everything below it to group, following no symlink and crossing no mount.
func ownTree(root string, group int64, readOnly bool) error {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsGroup on %s: %w", root, err)
	}
	dir := os.NewFile(uintptr(fd), root)
	defer dir.Close()
	if err := ownDir(dir, group, readOnly); err != nil {
		return fmt.Errorf("fsGroup on %s: %w", root, err)
	}
	return nil
}

func ownDir(dir *os.File, group int64, readOnly bool) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ownEntry(int(dir.Fd()), name, group, readOnly); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return ownOpen(int(dir.Fd()), group, readOnly)
}

func ownEntry(parent int, name string, group int64, readOnly bool) error {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(parent, name, &how)
	if errors.Is(err, unix.EXDEV) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return unix.Fchownat(fd, "", -1, int(group), unix.AT_EMPTY_PATH)
	case unix.S_IFDIR:
		sub, err := os.OpenFile(procPath(fd), os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer sub.Close()
		return ownDir(sub, group, readOnly)
	}
	return ownOpen(fd, group, readOnly)
}

// ownOpen gives one file or directory, open as fd, to group.
func ownOpen(fd int, group int64, readOnly bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := unix.Fchownat(fd, "", -1, int(group), unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	return unix.Chmod(procPath(fd), grouped(st.Mode, isDir, readOnly))
}

// rootMatches tells whether root already has the group and the mode that ownTree would give it.
func rootMatches(root string, group int64, readOnly bool) bool {
	var st unix.Stat_t
	if err := unix.Lstat(root, &st); err != nil {
		return false
	}
	return int64(st.Gid) == group && grouped(st.Mode, true, readOnly) == st.Mode&0o7777
}

func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
