package volume

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// isMountPoint reports whether something is mounted at path, in this mount namespace.
func isMountPoint(path string) (bool, error) {
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	return len(found) > 0, err
}

// maxStacked bounds how many mounts may lie on top of each other before unmountBelow gives up.
const maxStacked = 64

// unmountBelow unmounts everything mounted at or below dir, the youngest first, and fails if something stays.
func unmountBelow(dir string) error {
	for range maxStacked {
		below, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir)) // in the order in which they were mounted
		if err != nil {
			return err
		}
		if len(below) == 0 {
			return nil
		}
		for i := len(below) - 1; i >= 0; i-- {
			if err := unmount(below[i].Mountpoint); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("unmount %s: new mounts keep appearing", dir)
}

// unmount removes one mount. A busy mount is detached: its users keep it, and no other process sees it.
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
