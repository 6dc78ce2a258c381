package lan

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// makeDisk mounts an ext4 of the given size at Data().
func (m *Machine) makeDisk(size int64) error {
	image := filepath.Join(m.Dir, "disk.img")
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", image},
		{"mount", "-o", "loop", image, m.Data()},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	m.disk = true
	return nil
}

// removeDisk unmounts the disk; programs that still use it are ending.
func (m *Machine) removeDisk() error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := unix.Unmount(m.Data(), 0)
		if err == nil || errors.Is(err, unix.EINVAL) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("unmount %s: %w", m.Data(), err), unix.Unmount(m.Data(), unix.MNT_DETACH))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (m *Machine) filler() string { return filepath.Join(m.Data(), "filler") }

// FillDisk leaves no free block on the machine's own disk.
func (m *Machine) FillDisk() error {
	if !m.disk {
		return errors.New("this machine has no disk of its own")
	}
	f, err := os.OpenFile(m.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var stat unix.Statfs_t
	if err := unix.Statfs(m.Data(), &stat); err != nil {
		return err
	}
	// First allocate most of the space at once, then the rest block by block.
	size := int64(stat.Bavail) * stat.Bsize
	for ; size > 1<<20; size -= 1 << 20 {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err == nil {
			break
		}
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// EmptyDisk frees the space that FillDisk took.
func (m *Machine) EmptyDisk() error {
	if err := os.Remove(m.filler()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// The roots of the control groups that limit disks.
const (
	blkioRoot   = "/sys/fs/cgroup/blkio" // version 1
	unifiedRoot = "/sys/fs/cgroup"       // version 2
)

// group returns the machine's control group; "" if no control group limits disks here.
func (m *Machine) group() (path string, v1 bool) {
	if _, err := os.Stat(filepath.Join(blkioRoot, "blkio.throttle.write_iops_device")); err == nil {
		return filepath.Join(blkioRoot, m.Name), true
	}
	controllers, _ := os.ReadFile(filepath.Join(unifiedRoot, "cgroup.controllers"))
	for _, c := range strings.Fields(string(controllers)) {
		if c == "io" {
			return filepath.Join(unifiedRoot, m.Name), false
		}
	}
	return "", false
}

// adopt moves a process into the machine's control group.
func (m *Machine) adopt(pid int) error {
	path, v1 := m.group()
	if path == "" {
		return nil
	}
	if !v1 { // may be refused if another program manages the groups; then disks cannot be slowed
		_ = os.WriteFile(filepath.Join(unifiedRoot, "cgroup.subtree_control"), []byte("+io"), 0)
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	err := os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended
	}
	return err
}

func (m *Machine) removeGroup() error {
	path, _ := m.group()
	if path == "" {
		return nil
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		err := unix.Rmdir(path)
		if err == nil || errors.Is(err, unix.ENOENT) || !errors.Is(err, unix.EBUSY) {
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return err
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// SlowDisk limits the writes a second of the machine's programs to the device below Data(), and so the syncs a second;
// 0 removes the limit.
func (m *Machine) SlowDisk(writesPerSecond int) error {
	path, v1 := m.group()
	if path == "" {
		return errors.New("no control group here limits disks")
	}
	var stat unix.Stat_t
	if err := unix.Stat(m.Data(), &stat); err != nil {
		return err
	}
	device := fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	if v1 {
		return os.WriteFile(filepath.Join(path, "blkio.throttle.write_iops_device"), fmt.Appendf(nil, "%s %d", device, writesPerSecond), 0)
	}
	limit := "max"
	if writesPerSecond > 0 {
		limit = strconv.Itoa(writesPerSecond)
	}
	return os.WriteFile(filepath.Join(path, "io.max"), fmt.Appendf(nil, "%s wiops=%s", device, limit), 0)
}
