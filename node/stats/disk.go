package stats

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// The size of a directory is believed for measureShare times as long as it took to add it up, and for minDiskTTL at
// least: one directory keeps no more than a twentieth of a CPU busy, however large it is and however often it is asked for.
const (
	minDiskTTL   = 10 * time.Second
	measureShare = 20
)

// usage is what the files below a directory take.
type usage struct {
	at            time.Time
	took          time.Duration
	bytes, inodes uint64
	err           error
}

// filesystem tells about the file system that path is on; nil when that cannot be found out.
func (p *Provider) filesystem(path string, now time.Time) *statsv1.FsStats {
	var st unix.Statfs_t
	if path == "" || unix.Statfs(path, &st) != nil {
		return nil
	}
	size := uint64(st.Bsize)
	n := func(v uint64) *uint64 { return &v }
	return &statsv1.FsStats{
		Time:           metav1.NewTime(now),
		CapacityBytes:  n(st.Blocks * size),
		AvailableBytes: n(st.Bavail * size),
		UsedBytes:      n((st.Blocks - st.Bfree) * size),
		Inodes:         n(st.Files),
		InodesFree:     n(st.Ffree),
		InodesUsed:     n(st.Files - st.Ffree),
	}
}

// directory tells what the files below dir take of their file system; nil when dir is not there.
func (p *Provider) directory(dir string, now time.Time) *statsv1.FsStats {
	p.mu.Lock()
	u, ok := p.disk[dir]
	p.mu.Unlock()
	if !ok || now.Sub(u.at) >= max(minDiskTTL, measureShare*u.took) {
		began := time.Now()
		u = measure(dir, now)
		u.took = time.Since(began)
		p.mu.Lock()
		p.disk[dir] = u
		p.mu.Unlock()
	}
	if u.err != nil {
		return nil
	}
	out := p.filesystem(dir, now)
	if out == nil {
		return nil
	}
	out.Time = metav1.NewTime(u.at)
	out.UsedBytes, out.InodesUsed = &u.bytes, &u.inodes
	return out
}

// measure adds up the blocks of everything below dir on dir's own file system, each inode once.
func measure(dir string, now time.Time) usage {
	u := usage{at: now}
	root, err := os.Lstat(dir)
	if err != nil {
		u.err = err
		return u
	}
	device := root.Sys().(*syscall.Stat_t).Dev
	linked := map[uint64]bool{}
	u.err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile, or not for us
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Dev != device {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			if linked[st.Ino] {
				return nil
			}
			linked[st.Ino] = true
		}
		u.bytes += uint64(st.Blocks) * 512
		u.inodes++
		return nil
	})
	return u
}

// volumes tells about the pod's volumes below its directory.
func (p *Provider) volumes(pod *v1.Pod, now time.Time) []statsv1.VolumeStats {
	var out []statsv1.VolumeStats
	base := filepath.Join(p.cfg.RootDir, "pods", string(pod.UID), "volumes")
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		kind := volumeKind(v)
		if kind == "" {
			if vs := p.mounted(pod, v.Name); vs != nil {
				out = append(out, *vs)
			}
			continue
		}
		fs := p.directory(filepath.Join(base, "kubernetes.io~"+kind, v.Name), now)
		if fs == nil {
			continue
		}
		out = append(out, statsv1.VolumeStats{Name: v.Name, FsStats: *fs})
	}
	return out
}

func volumeKind(v *v1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return "empty-dir"
	case v.ConfigMap != nil:
		return "configmap"
	case v.Secret != nil:
		return "secret"
	case v.Projected != nil:
		return "projected"
	case v.DownwardAPI != nil:
		return "downward-api"
	}
	return ""
}

// ephemeral adds up what the pod takes of the node's disk: its containers' layers and logs, and volumes not in memory.
func (p *Provider) ephemeral(spec *v1.PodSpec, pod *statsv1.PodStats, now time.Time) *statsv1.FsStats {
	out := p.filesystem(p.cfg.RootDir, now)
	if out == nil {
		return nil
	}
	out.UsedBytes, out.InodesUsed = new(uint64), new(uint64)
	take := func(fs *statsv1.FsStats) {
		if fs != nil {
			out.UsedBytes, out.InodesUsed = add(out.UsedBytes, fs.UsedBytes), add(out.InodesUsed, fs.InodesUsed)
		}
	}
	for i := range pod.Containers {
		take(pod.Containers[i].Rootfs)
		take(pod.Containers[i].Logs)
	}
	own := map[string]bool{}
	for i := range spec.Volumes {
		own[spec.Volumes[i].Name] = volumeKind(&spec.Volumes[i]) != ""
	}
	for i := range pod.VolumeStats {
		if !own[pod.VolumeStats[i].Name] {
			continue // its files are not counted one by one, and outlive the pod
		}
		if fs := &pod.VolumeStats[i].FsStats; fs.CapacityBytes != nil && *fs.CapacityBytes == *out.CapacityBytes {
			take(fs) // on the same file system as the agent, so not in memory
		}
	}
	return out
}
