package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// setUpEmptyDir makes dir an empty directory that every user may write to, on the medium that the source names. An existing
// one keeps its content.
func (m *Manager) setUpEmptyDir(pod *v1.Pod, source *v1.EmptyDirVolumeSource, dir string) error {
	group := fsGroup(pod)
	switch {
	case source.Medium == v1.StorageMediumDefault:
		return makeOwnedDir(dir, group)
	case source.Medium == v1.StorageMediumMemory:
		return mountTmpfs(dir, m.tmpfsSize(pod, source.SizeLimit), group)
	case strings.HasPrefix(string(source.Medium), string(v1.StorageMediumHugePages)):
		return m.mountHugePages(pod, source, dir, group)
	}
	return fmt.Errorf("unknown storage medium %q", source.Medium)
}

func fsGroup(pod *v1.Pod) *int64 {
	if sc := pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

// makeOwnedDir makes dir with mode 0777, or 2777 and the group. It appears under its name only when it is whole.
func makeOwnedDir(dir string, group *int64) error {
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	tmp := filepath.Join(filepath.Dir(dir), ".new-"+filepath.Base(dir))
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o750); err != nil {
		return err
	}
	mode := uint32(0o777)
	if group != nil {
		if err := os.Chown(tmp, -1, int(*group)); err != nil {
			return err
		}
		mode = grouped(mode, true, false)
	}
	if err := unix.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// mountTmpfs mounts a tmpfs of at most size bytes on dir unless something is mounted there. Where the kernel can, its
// pages never go to swap.
func mountTmpfs(dir string, size int64, group *int64) error {
	options := fmt.Sprintf("mode=%o", 0o777)
	if group != nil {
		options = fmt.Sprintf("mode=%o,gid=%d", grouped(0o777, true, false), *group)
	}
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	return mountOnce(dir, "tmpfs", options+",noswap", options)
}

// mountOnce mounts a file system on dir with the first of the options that the kernel takes.
func mountOnce(dir, kind string, options ...string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	for _, o := range options {
		if err = unix.Mount(kind, dir, kind, 0, o); err == nil || !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("mount %s on %s: %w", kind, dir, err)
	}
	return nil
}

// tmpfsSize is the smallest of the volume's limit, the pod's memory limit and what the node can give to pods.
func (m *Manager) tmpfsSize(pod *v1.Pod, limit *resource.Quantity) int64 {
	allocatable := m.cfg.NodeAllocatable()
	size := allocatable.Memory().Value()
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if everyContainerLimitsMemory(pod) {
		size = smaller(size, limits.Memory().Value())
	}
	if limit != nil {
		size = smaller(size, limit.Value())
	}
	return size
}

func everyContainerLimitsMemory(pod *v1.Pod) bool {
	if resourcehelper.IsPodLevelLimitsSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero() {
		return true
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return len(pod.Spec.Containers) > 0
}

// smaller returns the smaller of both, where 0 means no limit.
func smaller(a, b int64) int64 {
	if a <= 0 || (b > 0 && b < a) {
		return b
	}
	return a
}

// mountHugePages mounts a hugetlbfs of the page size that the medium names, or the only one that the pod asks for.
func (m *Manager) mountHugePages(pod *v1.Pod, source *v1.EmptyDirVolumeSource, dir string, group *int64) error {
	pageSize, err := hugePageSize(pod, source.Medium)
	if err != nil {
		return err
	}
	options := fmt.Sprintf("pagesize=%d,mode=%o", pageSize.Value(), 0o777)
	if group != nil {
		options += fmt.Sprintf(",gid=%d", *group)
	}
	return mountOnce(dir, "hugetlbfs", options)
}

func hugePageSize(pod *v1.Pod, medium v1.StorageMedium) (resource.Quantity, error) {
	if size, ok := strings.CutPrefix(string(medium), v1.ResourceHugePagesPrefix); ok {
		return resource.ParseQuantity(size)
	}
	if size, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePages)+"-"); ok {
		return resource.ParseQuantity(size)
	}
	sizes := map[string]bool{}
	for name := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			sizes[size] = true
		}
	}
	if len(sizes) != 1 {
		return resource.Quantity{}, fmt.Errorf("medium %q needs exactly one huge page size in the pod's requests, found %d", medium, len(sizes))
	}
	for size := range sizes {
		return resource.ParseQuantity(size)
	}
	return resource.Quantity{}, nil
}
