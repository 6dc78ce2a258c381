package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// UnpublishPod takes away every volume that a pod uses, and unstages those that no other pod uses. It is idempotent and
// works from what is recorded, so also for pods of an earlier life of the agent.
func (n *Node) UnpublishPod(ctx context.Context, uid types.UID) error {
	records, err := n.podRecords(uid)
	errs := []error{err}
	for dir, r := range records {
		if err := n.unpublish(ctx, dir, r); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", r.Volume, err))
		}
	}
	return errors.Join(errs...)
}

func (n *Node) unpublish(ctx context.Context, dir string, r record) error {
	unlock, err := n.locks.lock(ctx, r.key())
	if err != nil {
		return err
	}
	defer unlock()
	d, err := n.driver(r.Driver)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = d.node.NodeUnpublishVolume(call, &csipb.NodeUnpublishVolumeRequest{VolumeId: r.Handle, TargetPath: r.Target})
	if err != nil && status.Code(err) != codes.NotFound { // the volume does not exist: nothing is mounted of it
		return fmt.Errorf("NodeUnpublishVolume: %w", err)
	}
	if err := removeTarget(r.Target); err != nil {
		return err
	}
	if err := n.unstageUnused(ctx, d, r); err != nil {
		return err
	}
	return dropRecord(dir)
}

// unstageUnused unstages a volume that no other pod uses. The pod's own record goes after that, so that the volume
// counts as in use until it is unstaged.
func (n *Node) unstageUnused(ctx context.Context, d *driver, r record) error {
	dir := n.stagingDir(r.Driver, r.Handle)
	staged, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	used, err := n.usedByOther(r.key(), r.Pod)
	if err != nil || used {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n.setStaged(dir, false)
	_, err = d.node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: r.Handle, StagingTargetPath: staged.Target})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("NodeUnstageVolume: %w", err)
	}
	if err := removeTarget(staged.Target); err != nil {
		return err
	}
	return dropRecord(dir)
}

// removeTarget removes what a driver left at a target: nothing, an empty directory or a file. A mount that stayed is an
// error: what is behind it is the volume's data.
func removeTarget(path string) error {
	there, err := mounted(path)
	if err != nil {
		return err
	}
	if there {
		return fmt.Errorf("%s is still mounted after the driver unmounted it", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweep unstages what is staged and no pod uses: the rest of an attempt that failed or of an agent that ended.
func (n *Node) sweep(ctx context.Context) {
	all, err := n.stagedRecords()
	if err != nil {
		n.log.Warn("cannot read records of staged volumes", "err", err)
	}
	for _, r := range all {
		if err := n.sweepOne(ctx, r); err != nil && ctx.Err() == nil {
			n.log.Warn("staged volume stays though no pod uses it; tries again", "driver", r.Driver, "volume", r.Volume, "err", err)
		}
	}
}

func (n *Node) sweepOne(ctx context.Context, r record) error {
	unlock, err := n.locks.lock(ctx, r.key())
	if err != nil {
		return err
	}
	defer unlock()
	used, err := n.usedByOther(r.key(), "")
	if err != nil || used {
		return err
	}
	d, err := n.driver(r.Driver)
	if err != nil {
		return nil // nothing to be done until it is back
	}
	return n.unstageUnused(ctx, d, r)
}

// mounted reports whether something is mounted on path: its parent is another mount, or another file system.
func mounted(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, filepath.Clean(path), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err != nil:
		if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EIO) {
			return true, nil // the mount of a file server that is gone
		}
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
