package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Teardown ends every container of this installation, its shims and
// containerd, and takes away their mounts. Nothing on disk is removed except
// what cannot outlive the mounts. It is safe to call again after a failure.
func Teardown(cfg Config, cgroupParent string) error {
	if pid := livePID(cfg); pid != 0 {
		endProcess(pid, 10*time.Second)
	}
	shims := processesOf(filepath.Join(cfg.BinDir, "containerd-shim-runc-v2"))
	for _, pid := range shims {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	err := killCgroups(cgroupParent)
	for _, pid := range shims {
		awaitGone(pid)
	}
	return errors.Join(err, UnmountBelow(cfg.RunDir), UnmountBelow(cfg.DataDir), removeCgroups(cgroupParent))
}

// processesOf lists the processes whose executable is path, also when that
// file was replaced while they ran.
func processesOf(path string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err == nil && strings.TrimSuffix(exe, " (deleted)") == path {
			out = append(out, pid)
		}
	}
	return out
}

func awaitGone(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
}

// hierarchies are the roots below which a cgroup parent may exist: the unified
// one, or one for each version 1 controller.
func hierarchies(parent string) []string {
	var out []string
	candidates, _ := filepath.Glob("/sys/fs/cgroup/*")
	for _, root := range append(candidates, "/sys/fs/cgroup") {
		if info, err := os.Stat(filepath.Join(root, parent)); err == nil && info.IsDir() && filepath.Join(root, parent) != root {
			out = append(out, filepath.Join(root, parent))
		}
	}
	return out
}

// killCgroups ends every process below parent in all hierarchies.
func killCgroups(parent string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		pids := map[int]bool{}
		for _, root := range hierarchies(parent) {
			collectPIDs(root, pids)
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes below the cgroup %s do not end", len(pids), parent)
		}
		for pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for pid := range pids {
			awaitGone(pid)
		}
	}
}

func collectPIDs(root string, into map[int]bool) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "cgroup.procs" {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for line := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(line); err == nil && pid > 1 {
				into[pid] = true
			}
		}
		return nil
	})
}

func removeCgroups(parent string) error {
	var failed []error
	for _, root := range hierarchies(parent) {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}

// unmountRounds bounds how often UnmountBelow looks again.
const unmountRounds = 20

// UnmountBelow detaches every mount below dir, the innermost first. The kernel
// shows its list of mounts in pieces, so one that others change meanwhile can
// hide an entry: only two empty looks in a row end the work.
func UnmountBelow(dir string) error {
	empty := 0
	var failed error
	for range unmountRounds {
		points, err := mountsBelow(dir)
		if err != nil {
			return err
		}
		if len(points) > 0 {
			empty, failed = 0, unmountAll(points)
			continue
		}
		if empty++; empty == 2 {
			return nil
		}
	}
	return failed
}

func unmountAll(points []string) error {
	var failed []error
	for _, p := range slices.Backward(points) {
		err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(failed...)
}

// mountsBelow lists mount points below dir in the order they were made.
func mountsBelow(dir string) ([]string, error) {
	dir = strings.TrimSuffix(dir, "/")
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range mounts {
		if m.Mountpoint != dir {
			out = append(out, m.Mountpoint)
		}
	}
	return out, nil
}
