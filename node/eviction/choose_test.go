package eviction

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// candidate is a pod with a priority and one request; what it uses is in the edits.
func candidate(name string, priority int32, request string, use ...func(*statsv1.PodStats)) Candidate {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Priority: &priority, Containers: []v1.Container{{Name: "c"}}}}
	pod.Spec.Volumes = []v1.Volume{emptyDir("e", ""), {Name: "ram", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}}
	if r, q, ok := strings.Cut(request, "="); ok {
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceName(r): resource.MustParse(q)}
	}
	if use == nil {
		return Candidate{Pod: pod}
	}
	s := &statsv1.PodStats{Containers: []statsv1.ContainerStats{{Name: "c"}}}
	for _, u := range use {
		u(s)
	}
	return Candidate{Pod: pod, Used: s}
}

func memory(mib uint64) func(*statsv1.PodStats) {
	return func(s *statsv1.PodStats) {
		n := mib << 20
		s.Memory = &statsv1.MemoryStats{WorkingSetBytes: &n}
		s.Containers[0].Memory = s.Memory
	}
}

func processes(n uint64) func(*statsv1.PodStats) {
	return func(s *statsv1.PodStats) { s.ProcessStats = &statsv1.ProcessStats{ProcessCount: &n} }
}

// files are the bytes, and as many inodes, of the container's layer and logs and of the volumes on disk and in memory.
func files(layer, logs, volume, ram uint64) func(*statsv1.PodStats) {
	of := func(n uint64) *statsv1.FsStats { return &statsv1.FsStats{UsedBytes: &n, InodesUsed: &n} }
	return func(s *statsv1.PodStats) {
		s.Containers[0].Rootfs, s.Containers[0].Logs = of(layer), of(logs)
		s.VolumeStats = []statsv1.VolumeStats{{Name: "e", FsStats: *of(volume)}, {Name: "ram", FsStats: *of(ram)}}
	}
}

func TestOrderOfEviction(t *testing.T) {
	for name, c := range map[string]struct {
		signal   Signal
		separate bool
		pods     []Candidate
		want     string
	}{
		"memory: over the request, priority, how much over, and first those not measured": {MemoryAvailable, false, []Candidate{
			candidate("within", 0, "memory=500Mi", memory(400)), candidate("high", 9, "", memory(900)), candidate("over10", 1, "memory=90Mi", memory(100)),
			candidate("over20", 1, "memory=10Mi", memory(30)), candidate("low", 0, "memory=1Mi", memory(2)), candidate("unknown9", 99, ""), candidate("unknown8", 98, ""),
			candidate("less", 0, "memory=500Mi", memory(100)),
		}, "unknown8 unknown9 low over20 over10 high within less"},
		"processes: priority, and their number": {PIDAvailable, false, []Candidate{
			candidate("high", 2, "", processes(900)), candidate("few", 1, "", processes(10)), candidate("many", 1, "", processes(20)),
		}, "many few high"},
		"disk: layers, logs and volumes together": {NodeFsAvailable, false, []Candidate{
			candidate("ram", 0, "", files(1, 1, 1, 99)), candidate("volume", 0, "", files(1, 1, 9, 0)), candidate("asked", 0, "ephemeral-storage=20", files(6, 6, 6, 0)),
			candidate("layer", 0, "", files(7, 1, 0, 0)),
		}, "volume layer ram asked"},
		"disk, with images elsewhere: logs and volumes": {NodeFsAvailable, true, []Candidate{
			candidate("layer", 0, "", files(99, 1, 1, 0)), candidate("logs", 0, "", files(0, 5, 1, 0)),
		}, "logs layer"},
		"file system of images: layers": {ImageFsAvailable, true, []Candidate{
			candidate("logs", 0, "", files(2, 50, 10, 0)), candidate("layer", 0, "", files(3, 1, 1, 0)),
		}, "layer logs"},
		"inodes cannot be requested": {NodeFsInodesFree, false, []Candidate{
			candidate("asked", 0, "ephemeral-storage=1Gi", files(5, 0, 0, 0)), candidate("few", 0, "", files(1, 0, 0, 0)),
		}, "asked few"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range ranked(c.pods, c.signal, c.separate) {
				got = append(got, r.Pod.Name)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s, want %s", s, c.want)
			}
		})
	}
}

func TestTheVictimsGraceAndMessage(t *testing.T) {
	amount, grace := resource.MustParse("100Mi"), int64(20)
	hard := Threshold{Signal: MemoryAvailable, Value: Value{Amount: &amount}}
	soft := hard
	soft.Soft, soft.Grace = true, time.Minute
	seen := Observations{MemoryAvailable: {Available: 50 << 10, Capacity: 1 << 30}}
	critical := candidate("critical", 2000000000, "", memory(999))
	static := candidate("static", 0, "", memory(999))
	static.Pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	pod := candidate("p", 0, "memory=10Mi", memory(30))
	pod.Pod.Spec.TerminationGracePeriodSeconds = &grace
	all := []Candidate{critical, static, pod}

	v, found := Choose(Shortage{Threshold: hard, Seen: seen, MaxPodGrace: 60}, all)
	want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Ki. Container c was using 30Mi, request is 10Mi, has larger consumption of memory. "
	if !found || v.Pod.Name != "p" || v.Grace != 1 || v.Message != want {
		t.Errorf("%v %q, grace %d, message %q", found, v.Pod.Name, v.Grace, v.Message)
	}
	if v.Annotations["offending_containers"] != "c" || v.Annotations["offending_containers_usage"] != "30Mi" || v.Annotations["starved_resource"] != "memory" {
		t.Errorf("annotations: %v", v.Annotations)
	}
	for most, want := range map[int64]int64{0: 0, 10: 10, 60: 20} {
		if v, _ := Choose(Shortage{Threshold: soft, Seen: seen, MaxPodGrace: most}, all); v.Grace != want {
			t.Errorf("grace %d of at most %d, want %d", v.Grace, most, want)
		}
	}
	if v, found := Choose(Shortage{Threshold: hard, Seen: seen}, []Candidate{critical, static}); found {
		t.Errorf("%s is evicted", v.Pod.Name)
	}
	disk := Threshold{Signal: NodeFsInodesFree, Value: Value{Fraction: 0.05}}
	v, _ = Choose(Shortage{Threshold: disk, Seen: Observations{NodeFsInodesFree: {Available: 10, Capacity: 1000}}}, []Candidate{candidate("q", 0, "")})
	if v.Message != "The node was low on resource: inodes. Threshold quantity: 50, available: 10. " {
		t.Errorf("message %q", v.Message)
	}
}
