package volume

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoints returns the mount points of this mount namespace in the order in which they were mounted.
func mountPoints() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMountInfo(f)
}

// parseMountInfo reads proc_pid_mountinfo(5); the fifth field is the mount point.
func parseMountInfo(r io.Reader) ([]string, error) {
	var out []string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			return nil, fmt.Errorf("mountinfo: unexpected line %q", lines.Text())
		}
		out = append(out, unescapeMount(fields[4]))
	}
	return out, lines.Err()
}

// unescapeMount undoes the kernel's \ooo for space, tab, newline and backslash.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

func isMountPoint(path string) (bool, error) {
	points, err := mountPoints()
	if err != nil {
		return false, err
	}
	for _, p := range points {
		if p == path {
			return true, nil
		}
	}
	return false, nil
}

// maxStacked bounds how many mounts may lie on top of each other before unmountBelow gives up.
const maxStacked = 64

// unmountBelow unmounts everything mounted at or below dir, the youngest first, and fails if something stays.
func unmountBelow(dir string) error {
	for range maxStacked {
		points, err := mountPoints()
		if err != nil {
			return err
		}
		var below []string
		for _, p := range points {
			if p == dir || strings.HasPrefix(p, dir+"/") {
				below = append(below, p)
			}
		}
		if len(below) == 0 {
			return nil
		}
		for i := len(below) - 1; i >= 0; i-- {
			if err := unmount(below[i]); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("unmount %s: new mounts keep appearing", dir)
}

// unmount takes one mount away; a busy one is detached, so that its users keep it and nobody else sees it.
func unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // EINVAL: no mount any more, a parent took it along
	}
	return &os.PathError{Op: "unmount", Path: path, Err: err}
}
