package eviction

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/kubernetes/pkg/apis/scheduling"
)

// Reason is the reason of an evicted pod's status and event.
const Reason = "Evicted"

// Limited reports whether the pod has a limit that Over judges: only such pods have to be measured.
func Limited(pod *v1.Pod) bool {
	if Critical(pod) {
		return false
	}
	for i := range pod.Spec.Volumes {
		if sizeLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	_, found := podLimit(pod)
	return found
}

// Critical reports whether the pod stays whatever it uses: it comes from a file of the node, which would not make it again, or the
// cluster depends on it.
func Critical(pod *v1.Pod) bool {
	return pod.Annotations["kubernetes.io/config.source"] == "file" || pod.Spec.Priority != nil && *pod.Spec.Priority >= scheduling.SystemCriticalPriority
}

// Over says why the pod has to go by what it takes of the disk; over is false when it may stay.
func Over(pod *v1.Pod, used statsv1.PodStats) (why string, over bool) {
	for _, rule := range []func(*v1.Pod, statsv1.PodStats) string{emptyDirs, wholePod, containers} {
		if why := rule(pod, used); why != "" {
			return why, true
		}
	}
	return "", false
}

// sizeLimit is the limit of an emptyDir; nil when there is none.
func sizeLimit(v *v1.Volume) *resource.Quantity {
	if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() != 1 {
		return nil
	}
	return v.EmptyDir.SizeLimit
}

func emptyDirs(pod *v1.Pod, used statsv1.PodStats) string {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		limit := sizeLimit(v)
		if limit == nil {
			continue
		}
		for _, s := range used.VolumeStats {
			if s.Name == v.Name && bytes(s.UsedBytes) > limit.Value() {
				return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
			}
		}
	}
	return ""
}

func podLimit(pod *v1.Pod) (resource.Quantity, bool) {
	limit, found := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return limit, found
}

func wholePod(pod *v1.Pod, used statsv1.PodStats) string {
	limit, found := podLimit(pod)
	if !found || used.EphemeralStorage == nil || bytes(used.EphemeralStorage.UsedBytes) <= limit.Value() {
		return ""
	}
	return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
}

func containers(pod *v1.Pod, used statsv1.PodStats) string {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		limit := c.Resources.Limits.StorageEphemeral()
		if limit.IsZero() {
			continue
		}
		for _, s := range used.Containers {
			if s.Name == c.Name && onDisk(s.Rootfs)+onDisk(s.Logs) > limit.Value() {
				return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
			}
		}
	}
	return ""
}

func onDisk(s *statsv1.FsStats) int64 {
	if s == nil {
		return 0
	}
	return bytes(s.UsedBytes)
}

func bytes(n *uint64) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}
