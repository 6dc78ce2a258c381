package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func container(requests, limits string) v1.Container {
	list := func(s string) v1.ResourceList {
		l := v1.ResourceList{}
		for _, f := range strings.Fields(s) {
			name, q, _ := strings.Cut(f, "=")
			l[v1.ResourceName(name)] = resource.MustParse(q)
		}
		return l
	}
	return v1.Container{Resources: v1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}
}

func TestLimitsOfAPod(t *testing.T) {
	for name, c := range map[string]struct {
		qos        v1.PodQOSClass
		containers []v1.Container
		want       Limits
	}{
		"best effort": {v1.PodQOSBestEffort, []v1.Container{container("", "")}, Limits{CPUShares: 2, CPUPeriod: Period, CPUQuota: -1, Memory: -1}},
		"one without limits": {v1.PodQOSBurstable, []v1.Container{container("cpu=500m", "memory=1Mi"), container("cpu=500m", "")},
			Limits{CPUShares: 1024, CPUPeriod: Period, CPUQuota: -1, Memory: -1}},
		"all limited": {v1.PodQOSGuaranteed, []v1.Container{container("cpu=1 memory=1Mi", "cpu=1 memory=1Mi"), container("cpu=1 memory=1Mi", "cpu=1 memory=1Mi")},
			Limits{CPUShares: 2048, CPUPeriod: Period, CPUQuota: 200000, Memory: 2 << 20}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ForPod(&v1.Pod{Spec: v1.PodSpec{Containers: c.containers}}, c.qos, 0); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestBoundsOfSharesQuotaAndWeight(t *testing.T) {
	if Shares(0) != 2 || Shares(1000) != 1024 || Shares(1<<40) != 262144 {
		t.Error("shares", Shares(0), Shares(1000), Shares(1<<40))
	}
	if Quota(0) != 0 || Quota(1) != 1000 || Quota(1500) != 150000 {
		t.Error("quota", Quota(0), Quota(1), Quota(1500))
	}
	if weight(0) != 1 || weight(1024) != 39 || weight(1<<30) != 10000 {
		t.Error("weight", weight(0), weight(1024), weight(1<<30))
	}
}

// TestGroupsOnThisMachine makes and removes real groups.
func TestGroupsOnThisMachine(t *testing.T) {
	m, err := New(Config{Parent: "/balsa-cgroup-test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Destroy(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Init(Limits{CPUShares: 1024}); err != nil {
		t.Fatal(err)
	}
	path, err := m.Apply("u", v1.PodQOSBurstable, Limits{CPUShares: 512, CPUPeriod: Period, CPUQuota: 50000, Memory: 64 << 20, PIDs: 100})
	if err != nil || path != "/balsa-cgroup-test/burstable/podu" {
		t.Fatal(path, err)
	}
	file := filepath.Join("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
	if m.Unified() {
		file = filepath.Join("/sys/fs/cgroup", path, "memory.max")
	}
	if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) != "67108864" {
		t.Errorf("memory limit %q %v", b, err)
	}
	if l, err := m.Read("u", v1.PodQOSBurstable); err != nil || l.CPUQuota != 50000 || l.Memory != 64<<20 {
		t.Errorf("read back: %+v %v", l, err)
	}
	if l, err := m.Read("", v1.PodQOSBurstable); err == nil {
		t.Errorf("read of a group that is not there: %+v", l)
	}
	if n, err := m.MemoryUsage("u", v1.PodQOSBurstable); err != nil || n < 0 || n > 64<<20 {
		t.Errorf("memory usage %d %v", n, err)
	}
	if pods := m.Pods(); len(pods) != 1 || pods[0] != "u" {
		t.Errorf("pods %v", pods)
	}
	for range 2 {
		if err := m.Remove("u"); err != nil {
			t.Error(err)
		}
	}
	if pods := m.Pods(); len(pods) != 0 {
		t.Errorf("pods %v after removal", pods)
	}
}

// TestUnifiedHierarchy writes what version 2 wants, into a directory that looks like it.
func TestUnifiedHierarchy(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"", "p", "p/burstable"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := New(Config{Root: root, Parent: "/p"})
	if err != nil || !m.Unified() {
		t.Fatal(m, err)
	}
	if _, err := m.Apply("u", v1.PodQOSBurstable, Limits{CPUShares: 1024, CPUPeriod: Period, CPUQuota: -1, Memory: 1 << 20, PIDs: -1}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpu.weight": "39", "cpu.max": "max 100000", "memory.max": "1048576", "pids.max": "max"} {
		if b, err := os.ReadFile(filepath.Join(root, "p/burstable/podu", file)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v, want %q", file, b, err, want)
		}
	}
}

func TestGroupsGrowBeforeWhatIsInThem(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want Limits }{
		"more":          {Limits{CPUQuota: 1000, Memory: 1}, Limits{CPUQuota: 2000, Memory: 2}, Limits{CPUQuota: 2000, Memory: 2}},
		"less":          {Limits{CPUQuota: 2000, Memory: 2}, Limits{CPUQuota: 1000, Memory: 1}, Limits{}},
		"both ways":     {Limits{CPUQuota: 1000, Memory: 2}, Limits{CPUQuota: 2000, Memory: 1}, Limits{CPUQuota: 2000}},
		"no limit more": {Limits{CPUQuota: 1000, Memory: 2}, Limits{CPUQuota: -1, Memory: -1}, Limits{CPUQuota: -1, Memory: -1}},
		"first limit":   {Limits{CPUQuota: -1, Memory: -1}, Limits{CPUQuota: 1000, Memory: 2}, Limits{}},
	} {
		if got := Raised(c.from, c.to); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
