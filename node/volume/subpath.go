package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subPathOf returns the mount's subPath with the container's variables put into subPathExpr.
func subPathOf(mount *v1.VolumeMount, env []*runtimeapi.KeyValue) (string, error) {
	sub := mount.SubPath
	if mount.SubPathExpr != "" {
		values := make(map[string]string, len(env))
		for _, kv := range env {
			values[kv.Key] = string(kv.Value)
		}
		var missing []string
		sub = Expand(mount.SubPathExpr, func(name string) (string, bool) {
			v := values[name]
			if v == "" {
				missing = append(missing, name)
			}
			return v, true
		})
		if len(missing) > 0 {
			return "", fmt.Errorf("missing value for %s", strings.Join(missing, ", "))
		}
	}
	if sub == "" {
		return "", nil
	}
	if filepath.IsAbs(sub) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	if err := noBacksteps(sub); err != nil {
		return "", fmt.Errorf("unable to provision SubPath `%s`: %w", sub, err)
	}
	return sub, nil
}

// bindSubPath makes sub of the volume at base visible at target, unless it is already. It binds the file that the kernel
// found below base, so that a symlink that changes meanwhile cannot redirect it. A missing directory is made with the
// volume's own mode.
func bindSubPath(base, sub, target string) error {
	fd, err := openBeneath(base, sub)
	if errors.Is(err, unix.ENOENT) {
		var st unix.Stat_t
		if err := unix.Stat(base, &st); err != nil {
			return err
		}
		if err := makeBeneath(base, sub, st.Mode); err != nil {
			return err
		}
		fd, err = openBeneath(base, sub)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	same, err := clearTarget(fd, target)
	if err != nil || same {
		return err
	}
	if err := makeTarget(fd, target); err != nil {
		return err
	}
	if err := unix.Mount(procPath(fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "bind", Path: target, Err: err}
	}
	return nil
}

// clearTarget unmounts what is bound on target, and reports true when that is already what fd is.
func clearTarget(fd int, target string) (same bool, err error) {
	for range maxStacked {
		mounted, err := isMountPoint(target)
		if err != nil || !mounted {
			return false, err
		}
		var have, want unix.Stat_t
		if unix.Fstat(fd, &want) == nil && unix.Lstat(target, &have) == nil && have.Dev == want.Dev && have.Ino == want.Ino {
			return true, nil
		}
		if err := unmount(target); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("unmount %s: too many mounts", target)
}

// makeTarget makes an empty directory or file, whatever fd is, to mount upon.
func makeTarget(fd int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.Mkdir(target, 0o750)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

func (m *Manager) subPathTarget(pod *v1.Pod, volume, container string, index int) string {
	return filepath.Join(m.podDir(pod.UID), subPathsDir, volume, container, strconv.Itoa(index))
}
