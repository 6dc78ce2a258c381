package eviction

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Candidate is a pod that runs here, with what it uses; Used is nil when that could not be measured.
type Candidate struct {
	Pod  *v1.Pod
	Used *statsv1.PodStats
}

// ranked returns the candidates in the order in which they go. For memory and disk: those that use more than they
// requested, then by priority, then by how much more. For processes: by priority, then by their number. Pods that could
// not be measured come first. The order of equal candidates is kept.
func ranked(all []Candidate, s Signal, separate bool) []Candidate {
	out := slices.Clone(all)
	use := func(c Candidate) int64 { return usage(c, s, separate) - request(c.Pod, s.resource()) }
	slices.SortStableFunc(out, func(a, b Candidate) int {
		unknown, over, more := first(a.Used == nil, b.Used == nil), 0, 0
		if a.Used != nil && b.Used != nil {
			more = cmp.Compare(use(b), use(a))
			if !s.OfPIDs() {
				over = first(use(a) > 0, use(b) > 0)
			}
		}
		return cmp.Or(unknown, over, cmp.Compare(corev1.PodPriority(a.Pod), corev1.PodPriority(b.Pod)), more)
	})
	return out
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// request returns the pod's request; 0 for inodes and processes, which cannot be requested.
func request(pod *v1.Pod, r v1.ResourceName) int64 {
	q := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[r]
	return q.Value()
}

// usage returns what a measured pod uses, in the unit of the signal.
func usage(c Candidate, s Signal, separate bool) int64 {
	switch s.resource() {
	case v1.ResourceMemory:
		if c.Used.Memory == nil {
			return 0
		}
		return bytes(c.Used.Memory.WorkingSetBytes)
	case pids:
		if c.Used.ProcessStats == nil {
			return 0
		}
		return bytes(c.Used.ProcessStats.ProcessCount)
	}
	of := func(fs *statsv1.FsStats) int64 {
		switch {
		case fs == nil:
			return 0
		case s.resource() == inodes:
			return bytes(fs.InodesUsed)
		}
		return bytes(fs.UsedBytes)
	}
	var sum int64
	for i := range c.Used.Containers {
		if !separate || s.ofImageFs() {
			sum += of(c.Used.Containers[i].Rootfs)
		}
		if !separate || !s.ofImageFs() {
			sum += of(c.Used.Containers[i].Logs)
		}
	}
	if separate && s.ofImageFs() {
		return sum
	}
	local := localVolumes(c.Pod)
	for i := range c.Used.VolumeStats {
		if v := &c.Used.VolumeStats[i]; local[v.Name] {
			sum += of(&v.FsStats)
		}
	}
	return sum
}

// localVolumes returns the volumes whose files are on the node's disk.
func localVolumes(pod *v1.Pod) map[string]bool {
	out := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		onDisk := v.EmptyDir != nil && v.EmptyDir.Medium == v1.StorageMediumDefault
		out[v.Name] = onDisk || v.HostPath != nil || v.ConfigMap != nil || v.GitRepo != nil
	}
	return out
}
