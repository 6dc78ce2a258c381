package localcsi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeService is CSI's node service. Nothing is staged: a directory is there already.
type nodeService struct {
	csipb.UnimplementedNodeServer
	*Driver
}

func (n nodeService) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: n.cfg.NodeName, AccessibleTopology: n.topology()}, nil
}

func (n nodeService) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

func (n nodeService) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	switch {
	case r.VolumeId == "":
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	case !filepath.IsAbs(r.TargetPath):
		return nil, status.Error(codes.InvalidArgument, "the target path is missing")
	case r.VolumeCapability == nil:
		return nil, status.Error(codes.InvalidArgument, "the volume's capability is missing")
	}
	if err := usable([]*csipb.VolumeCapability{r.VolumeCapability}); err != nil {
		return nil, err
	}
	flags, err := mountFlags(r.VolumeCapability.GetMount().MountFlags)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if r.Readonly || r.VolumeCapability.AccessMode.Mode == csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
		flags |= unix.MOUNT_ATTR_RDONLY
	}
	n.mounts.Lock()
	defer n.mounts.Unlock()
	data, err := n.store.open(r.VolumeId)
	if err != nil {
		return nil, coded(err)
	}
	defer data.Close()
	target := filepath.Clean(r.TargetPath)
	if r.VolumeCapability.AccessMode.Mode == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		used, err := n.mountedOn(r.VolumeId)
		if err != nil {
			return nil, coded(err)
		}
		if len(used) > 0 && !slices.Contains(used, target) {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %s has a single writer and is mounted on %s", r.VolumeId, used[0])
		}
	}
	if err := bind(data, target, flags); err != nil {
		return nil, coded(err)
	}
	return &csipb.NodePublishVolumeResponse{}, nil
}

// bind mounts an open directory on target, which it makes, with flags from the first moment on. When it is mounted there
// already, nothing is done.
func bind(dir *os.File, target string, flags uint64) error {
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	at, err := unix.Open(target, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: target, Err: err}
	}
	defer unix.Close(at)
	there, err := isMount(target)
	if err != nil {
		return err
	}
	if there {
		return sameDirectory(int(dir.Fd()), at, target)
	}
	tree, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: flags}); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	return nil
}

func sameDirectory(a, b int, target string) error {
	var x, y unix.Stat_t
	if err := errors.Join(unix.Fstat(a, &x), unix.Fstat(b, &y)); err != nil {
		return err
	}
	if x.Dev != y.Dev || x.Ino != y.Ino {
		return fmt.Errorf("something else is mounted on %s", target)
	}
	return nil
}

// mountFlags are the mount options that a bind mount can have.
func mountFlags(options []string) (flags uint64, err error) {
	known := map[string]uint64{
		"ro": unix.MOUNT_ATTR_RDONLY, "rw": 0, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV,
		"noexec": unix.MOUNT_ATTR_NOEXEC, "nodiratime": unix.MOUNT_ATTR_NODIRATIME,
	}
	for _, o := range options {
		f, ok := known[o]
		if !ok {
			return 0, fmt.Errorf("mount option %q is not known; a directory can be mounted with ro, rw, nosuid, nodev, noexec, nodiratime", o)
		}
		flags |= f
	}
	return flags, nil
}

func (n nodeService) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	if r.VolumeId == "" || !filepath.IsAbs(r.TargetPath) {
		return nil, status.Error(codes.InvalidArgument, "the volume's id or the target path is missing")
	}
	n.mounts.Lock()
	defer n.mounts.Unlock()
	if err := unbind(filepath.Clean(r.TargetPath)); err != nil {
		return nil, coded(err)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// unbind takes the mount on target away, and target.
func unbind(target string) error {
	there, err := isMount(target)
	if err != nil {
		return err
	}
	if there {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) { // a process outlived its pod: it keeps the directory, which no other pod sees
			err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil {
			return &os.PathError{Op: "unmount", Path: target, Err: err}
		}
	}
	if err := unix.Rmdir(target); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: target, Err: err}
	}
	return nil
}

// isMount reports whether path is the root of a mount.
func isMount(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// mountedOn returns where a volume is mounted: the mounts of this file system whose root is the volume's directory.
func (d *Driver) mountedOn(id string) (targets []string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(d.cfg.Dir, &st); err != nil {
		return nil, err
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	suffix := "/" + filepath.Base(d.cfg.Dir) + "/" + id + "/" + dataName
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[2] == device && strings.HasSuffix(fields[3], suffix) {
			targets = append(targets, fields[4])
		}
	}
	return targets, lines.Err()
}

func (n nodeService) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	if r.VolumeId == "" || r.VolumePath == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's id or path is missing")
	}
	data, err := n.store.open(r.VolumeId)
	if err != nil {
		return nil, coded(err)
	}
	defer data.Close()
	at, err := unix.Open(r.VolumePath, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted on %s", r.VolumeId, r.VolumePath)
	}
	defer unix.Close(at)
	if err := sameDirectory(int(data.Fd()), at, r.VolumePath); err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(at, &st); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize, Available: int64(st.Bavail) * st.Bsize, Used: int64(st.Blocks-st.Bfree) * st.Bsize},
		{Unit: csipb.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},
	}}, nil
}
