package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// setUpLocal makes a volume of this node's disk ready. A block device that is wanted as a file system is mounted below
// the pod's directory, and formatted before if it is empty. Called again, it only looks whether the volume is to grow.
func (m *Manager) setUpLocal(ctx context.Context, st *podState, v *v1.Volume, b boundClaim) (Volume, error) {
	block := isBlock(b.pv)
	path, device, err := findLocal(b.pv.Spec.Local.Path, block)
	if err != nil {
		return Volume{}, err
	}
	vol, ready := st.mounts[v.Name]
	if !ready {
		vol = Volume{HostPath: path, ReadOnly: b.readOnly, Block: block}
		if !block && (device || len(b.pv.Spec.MountOptions) > 0) {
			vol.HostPath = m.volumeDir(st.pod, "local-volume", b.pv.Name)
			if err := m.mountLocal(b.pv, path, vol.HostPath, device); err != nil {
				return Volume{}, err
			}
		}
		if !block && !b.readOnly {
			if err := applyFSGroup(st.pod, vol.HostPath); err != nil {
				return Volume{}, err
			}
		}
	}
	if b.readOnly {
		return vol, nil
	}
	st.again[v.Name] = true
	m.refreshAt(st.pod.UID, time.Now().Add(claimInterval))
	return vol, m.expand(ctx, b.pv, b.claim, func(resource.Quantity) error {
		if !device || block {
			return nil // the directory or the device has its size already
		}
		return m.resize(path, vol.HostPath)
	})
}

// resizeFS grows the file system on a device that is mounted on dir to the device's size.
func resizeFS(device, dir string) error {
	_, err := mount.NewResizeFs(exec.New()).Resize(device, dir)
	return err
}

// findLocal follows the links of path, which an administrator has chosen. It reports whether a block device is there, and
// refuses what cannot be used in the volume's mode.
func findLocal(path string, block bool) (real string, device bool, err error) {
	if err := noBacksteps(path); err != nil {
		return "", false, err
	}
	real, err = filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, fmt.Errorf("path %q does not exist", path)
	}
	if err != nil {
		return "", false, err
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", false, err
	}
	device = st.Mode()&os.ModeType == os.ModeDevice
	switch {
	case block && !device:
		return "", false, fmt.Errorf("path %q is not a block device", path)
	case !device && !st.IsDir():
		return "", false, fmt.Errorf("path %q is neither a directory nor a block device", path)
	}
	return real, device, nil
}

// mountLocal mounts path with the options of its local volume on dir, unless something is mounted there. A device
// without a file system gets the one that the volume names, by default ext4. The programs that do so are the host's:
// blkid, fsck, mkfs.TYPE, mount.
func (m *Manager) mountLocal(pv *v1.PersistentVolume, path, dir string, device bool) error {
	options := pv.Spec.MountOptions
	lock, _ := m.devices.LoadOrStore(path, &sync.Mutex{}) // no two pods format it at once
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	mounter := mount.NewSafeFormatAndMount(mount.NewWithoutSystemd(""), exec.New())
	if !device {
		return mounter.Mount(path, dir, "", append([]string{"bind"}, options...))
	}
	fsType := "ext4"
	if t := pv.Spec.Local.FSType; t != nil && *t != "" {
		fsType = *t
	}
	used, err := deviceMounted(path)
	if err != nil {
		return err
	}
	if used { // it is formatted, and cannot be checked
		return mounter.Mount(path, dir, fsType, options)
	}
	return mounter.FormatAndMount(path, dir, fsType, options)
}

// deviceMounted reports whether a block device is mounted anywhere.
func deviceMounted(path string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	found, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		same := i.Major == int(unix.Major(st.Rdev)) && i.Minor == int(unix.Minor(st.Rdev))
		return !same, same
	})
	return len(found) > 0, err
}
