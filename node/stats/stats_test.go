package stats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeStub is a runtime with one pod of one container, made twice.
type runtimeStub struct{ sandboxErr error }

func value(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

func container(attempt uint32, cpu uint64) *runtimeapi.ContainerStats {
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{Id: "id", Metadata: &runtimeapi.ContainerMetadata{Name: "c", Attempt: attempt}, Labels: map[string]string{podUIDLabel: "u"}},
		Cpu:        &runtimeapi.CpuUsage{Timestamp: 5e9, UsageCoreNanoSeconds: value(cpu), UsageNanoCores: value(7)},
		Memory:     &runtimeapi.MemoryUsage{Timestamp: 5e9, WorkingSetBytes: value(100), UsageBytes: value(200)},
	}
}

func (r runtimeStub) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	if r.sandboxErr != nil {
		return nil, r.sandboxErr
	}
	return []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u"}},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu:        &runtimeapi.CpuUsage{Timestamp: 5e9, UsageCoreNanoSeconds: value(11)},
			Memory:     &runtimeapi.MemoryUsage{WorkingSetBytes: value(150)},
			Network:    &runtimeapi.NetworkUsage{DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: value(1)}},
			Containers: []*runtimeapi.ContainerStats{container(0, 1), container(1, 10)},
		},
	}}, nil
}

func (r runtimeStub) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return []*runtimeapi.ContainerStats{container(1, 10)}, nil
}

func provider(t *testing.T, r Runtime) (*Provider, *v1.Pod) {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	pod.Spec.Volumes = []v1.Volume{{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	other := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "not-running", UID: "x"}}
	cfg := Config{NodeName: "n1", RootDir: t.TempDir(), LogRoot: t.TempDir(), Runtime: r, Pods: func() []*v1.Pod { return []*v1.Pod{other, pod} }}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return New(cfg), pod
}

func TestSummary(t *testing.T) {
	p, _ := provider(t, runtimeStub{})
	dir := filepath.Join(p.cfg.RootDir, "pods/u/volumes/kubernetes.io~empty-dir/e")
	logs := filepath.Join(p.cfg.LogRoot, "ns_p_u/c")
	for _, d := range []string{dir, logs} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "f"), make([]byte, 100<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "same")); err != nil {
		t.Fatal(err)
	}
	sum, err := p.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := sum.Node
	if n.NodeName != "n1" || *n.CPU.UsageCoreNanoSeconds == 0 || *n.Memory.WorkingSetBytes == 0 || *n.Memory.AvailableBytes == 0 || *n.Fs.CapacityBytes == 0 || n.StartTime.IsZero() || *n.Rlimit.MaxPID == 0 {
		t.Errorf("%+v", n)
	}
	if len(sum.Pods) != 1 || len(sum.Pods[0].Containers) != 1 {
		t.Fatalf("%+v", sum.Pods)
	}
	got := sum.Pods[0]
	if got.PodRef.UID != "u" || *got.CPU.UsageCoreNanoSeconds != 11 || *got.Memory.WorkingSetBytes != 150 || got.Network.Name != "eth0" {
		t.Errorf("%+v", got)
	}
	if c := got.Containers[0]; *c.CPU.UsageCoreNanoSeconds != 10 || *c.CPU.UsageNanoCores != 7 || c.CPU.Time.Unix() != 5 {
		t.Errorf("not the newest container: %+v", c.CPU)
	}
	used := *got.VolumeStats[0].UsedBytes
	if used < 100<<10 || used > 120<<10 {
		t.Errorf("the volume takes %d bytes; a second name of a file takes nothing", used)
	}
	if *got.EphemeralStorage.UsedBytes < 200<<10 {
		t.Errorf("ephemeral storage %d", *got.EphemeralStorage.UsedBytes)
	}
}

func TestRuntimesThatKnowContainersOnly(t *testing.T) {
	p, _ := provider(t, runtimeStub{sandboxErr: status.Error(codes.Unimplemented, "no")})
	sum, err := p.Summary(t.Context())
	if err != nil || len(sum.Pods) != 1 || *sum.Pods[0].CPU.UsageCoreNanoSeconds != 10 || *sum.Pods[0].Memory.WorkingSetBytes != 100 {
		t.Fatal(sum, err)
	}
	p, _ = provider(t, runtimeStub{sandboxErr: errors.New("gone")})
	if _, err := p.Summary(t.Context()); err == nil {
		t.Fatal("no error")
	}
}

func TestRates(t *testing.T) {
	p, _ := provider(t, runtimeStub{})
	at := time.Unix(100, 0)
	if p.rate("k", at, 1000) != nil {
		t.Error("a rate of one sample")
	}
	if r := p.rate("k", at.Add(2*time.Second), 1000+4e9); r == nil || *r != 2e9 {
		t.Error(r)
	}
	if r := p.rate("k", at.Add(2*time.Second+time.Millisecond), 1000+5e9); r == nil || *r != 2e9 {
		t.Error("two samples too close make a rate of noise", r)
	}
	if p.rate("k", at.Add(9*time.Second), 0) != nil {
		t.Error("a counter that began again made a rate")
	}
}

func TestProcFiles(t *testing.T) {
	nanos, err := parseProcStat([]byte("cpu  100 10 50 9999 888 1 2 3 0 0\ncpu0 1\n"))
	if err != nil || nanos != 166*10_000_000 {
		t.Error(nanos, err)
	}
	if _, err := parseProcStat([]byte("nonsense")); err == nil {
		t.Error("nonsense was taken")
	}
	if n, ok := keyed([]byte("a 1\nbtime 17\n"), "btime"); !ok || n != 17 {
		t.Error(n, ok)
	}
	net := parseNetDev([]byte("Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 5 1 2 0 0 0 0 0 7 1 3 0 0 0 0 0\n"))
	if len(net) != 1 || net[0].Name != "eth0" || *net[0].RxBytes != 5 || *net[0].RxErrors != 2 || *net[0].TxBytes != 7 || *net[0].TxErrors != 3 {
		t.Errorf("%+v", net)
	}
	mem, swap := nodeMemory(map[string]uint64{"MemTotal": 100, "MemFree": 40, "Inactive(file)": 20, "SwapTotal": 9, "SwapFree": 4}, time.Now())
	if *mem.UsageBytes != 60 || *mem.WorkingSetBytes != 40 || *mem.AvailableBytes != 60 || *swap.SwapUsageBytes != 5 {
		t.Errorf("%+v %+v", mem, swap)
	}
}
