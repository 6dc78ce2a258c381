package volume

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Stats returns what a volume of a claim or of a CSI driver has and takes; nil when that is not known. It may call the
// driver, and takes no lock that is held while volumes are made ready.
func (m *Manager) Stats(ctx context.Context, pod *v1.Pod, name string) (*statsv1.VolumeStats, error) {
	m.mu.Lock()
	p, ok := m.persistent[pod.UID][name]
	m.mu.Unlock()
	if !ok {
		return nil, nil
	}
	out := &statsv1.VolumeStats{Name: name, FsStats: statsv1.FsStats{Time: metav1.NewTime(time.Now())}}
	if p.claim != "" {
		out.PVCRef = &statsv1.PVCReference{Name: p.claim, Namespace: pod.Namespace}
	}
	switch {
	case p.csi && m.cfg.CSI != nil:
		u, ok, err := m.cfg.CSI.Usage(ctx, pod, p.spec)
		if err != nil || !ok {
			return nil, err
		}
		out.CapacityBytes, out.UsedBytes, out.AvailableBytes = known(u.Capacity), known(u.Used), known(u.Available)
		out.Inodes, out.InodesUsed, out.InodesFree = known(u.Inodes), known(u.InodesUsed), known(u.InodesAvail)
		return out, nil
	case p.device != "" && !p.block:
		return out, m.localStats(out, pod, p)
	}
	return nil, nil
}

// known returns a driver's number; below 0 it is not known.
func known(n int64) *uint64 {
	if n < 0 {
		return nil
	}
	u := uint64(n)
	return &u
}

// localStats fills out with the figures of the file system that a local volume is on.
func (m *Manager) localStats(out *statsv1.VolumeStats, pod *v1.Pod, p persistent) error {
	path := m.volumeDir(pod, "local-volume", p.spec)
	if mounted, err := isMountPoint(path); err != nil {
		return err
	} else if !mounted {
		path = p.device
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	out.CapacityBytes, out.UsedBytes, out.AvailableBytes = known(int64(st.Blocks)*st.Bsize), known(int64(st.Blocks-st.Bfree)*st.Bsize), known(int64(st.Bavail)*st.Bsize)
	out.Inodes, out.InodesUsed, out.InodesFree = known(int64(st.Files)), known(int64(st.Files-st.Ffree)), known(int64(st.Ffree))
	return nil
}
