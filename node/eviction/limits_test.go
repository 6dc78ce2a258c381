package eviction

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func emptyDir(name, limit string) v1.Volume {
	v := v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
	if limit != "" {
		q := resource.MustParse(limit)
		v.EmptyDir.SizeLimit = &q
	}
	return v
}

func container(name, limit string) v1.Container {
	c := v1.Container{Name: name}
	if limit != "" {
		c.Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(limit)}
	}
	return c
}

func fs(used uint64) *statsv1.FsStats { return &statsv1.FsStats{UsedBytes: &used} }

func TestPodsThatTakeMoreThanTheyMay(t *testing.T) {
	const k = 1 << 10
	critical := int32(2000000000)
	use := func(whole, volume, rootfs, logs uint64) statsv1.PodStats {
		return statsv1.PodStats{EphemeralStorage: fs(whole), VolumeStats: []statsv1.VolumeStats{{Name: "e", FsStats: *fs(volume)}},
			Containers: []statsv1.ContainerStats{{Name: "c", Rootfs: fs(rootfs), Logs: fs(logs)}}}
	}
	for name, c := range map[string]struct {
		pod     v1.Pod
		used    statsv1.PodStats
		limited bool
		why     string
	}{
		"no limits":       {v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("e", "")}, Containers: []v1.Container{container("c", "")}}}, use(99*k, 99*k, 99*k, 0), false, ""},
		"limit of zero":   {v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("e", "0")}}}, use(0, 99*k, 0, 0), false, ""},
		"volume at limit": {v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("e", "10Ki")}}}, use(0, 10*k, 0, 0), true, ""},
		"volume over it":  {v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("e", "10Ki")}}}, use(0, 10*k+1, 0, 0), true, `Usage of EmptyDir volume "e" exceeds the limit "10Ki". `},
		"another volume":  {v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("f", "10Ki")}}}, use(0, 99*k, 0, 0), true, ""},
		"container at its limit": {v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{container("c", "10Ki"), container("d", "90Ki")}}},
			use(100*k, 0, 6*k, 4*k), true, ""},
		"container over its limit": {v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{container("c", "10Ki"), container("d", "90Ki")}}},
			use(100*k, 0, 6*k, 5*k), true, `Container c exceeded its local ephemeral storage limit "10Ki". `},
		"pod over the limit of its containers": {v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{container("c", "10Ki"), container("d", "90Ki")}}},
			use(100*k+1, 0, 0, 0), true, `Pod ephemeral local storage usage exceeds the total limit of containers 100Ki. `},
		"not measured": {v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("e", "1")}, Containers: []v1.Container{container("c", "1")}}}, statsv1.PodStats{}, true, ""},
		"critical":     {v1.Pod{Spec: v1.PodSpec{Priority: &critical, Volumes: []v1.Volume{emptyDir("e", "1")}}}, statsv1.PodStats{}, false, ""},
		"static": {v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.source": "file"}},
			Spec: v1.PodSpec{Volumes: []v1.Volume{emptyDir("e", "1")}}}, statsv1.PodStats{}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Limited(&c.pod); got != c.limited {
				t.Errorf("limited: %t", got)
			}
			if why, over := Over(&c.pod, c.used); why != c.why || over != (c.why != "") {
				t.Errorf("over %t: %q, want %q", over, why, c.why)
			}
		})
	}
}
