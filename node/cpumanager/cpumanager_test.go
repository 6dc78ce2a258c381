package cpumanager

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node/machine"
	"github.com/balsahq/balsa/node/topology"
)

// hyper returns a machine with two threads a core: CPU n and CPU n+cores share one. Sockets are NUMA nodes.
func hyper(sockets, coresEach int) *machine.Topology {
	m, cores := &machine.Topology{}, sockets*coresEach
	for id := range 2 * cores {
		core := id % cores
		m.CPUs = append(m.CPUs, machine.CPU{ID: id, Core: core, Socket: core / coresEach, Node: core / coresEach})
	}
	return m
}

// single returns a machine of n cores with one thread each.
func single(n int) *machine.Topology {
	m := &machine.Topology{}
	for id := range n {
		m.CPUs = append(m.CPUs, machine.CPU{ID: id, Core: id})
	}
	return m
}

func set(text string) cpuset.CPUSet {
	s, err := cpuset.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

func TestTakeKeepsGroupsWhole(t *testing.T) {
	two := hyper(2, 4) // socket 0: 0-3,8-11; socket 1: 4-7,12-15
	subNUMA := &machine.Topology{}
	for id := range 8 { // one socket, two NUMA nodes
		subNUMA.CPUs = append(subNUMA.CPUs, machine.CPU{ID: id, Core: id, Node: id / 4})
	}
	for name, c := range map[string]struct {
		machine   *machine.Topology
		available string
		n         int
		want      string
	}{
		"one CPU":                  {two, "0-15", 1, "0"},
		"one core":                 {two, "0-15", 2, "0,8"},
		"one and a half cores":     {two, "0-15", 3, "0-1,8"},
		"a socket":                 {two, "0-15", 8, "0-3,8-11"},
		"a socket and a core":      {two, "0-15", 10, "0-4,8-12"},
		"the socket that is whole": {two, "1-15", 8, "4-7,12-15"},
		"the core that is begun":   {two, "1-15", 1, "8"},
		"the socket that is begun": {two, "1-15", 2, "1,9"},
		"a NUMA node of a socket":  {subNUMA, "0-7", 4, "0-3"},
		"all":                      {two, "0-15", 16, "0-15"},
		"single threads":           {single(4), "1-3", 2, "1-2"},
		"no core is whole":         {two, "8-15", 4, "8-11"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := take(c.machine, set(c.available), c.n)
			if err != nil || got.String() != c.want {
				t.Errorf("got %s %v, want %s", got, err, c.want)
			}
		})
	}
	if _, err := take(two, set("0-3"), 5); err == nil || err.Error() != "not enough cpus available to satisfy request: requested=5, available=4" {
		t.Errorf("too many: %v", err)
	}
	if got, err := takeNear(two, set("0-15"), 10, topology.NodesOf(1)); err != nil || !set("4-7,12-15").IsSubsetOf(got) || got.Size() != 10 {
		t.Errorf("near node 1: %s %v", got, err)
	}
}

func TestHintsOfCPUs(t *testing.T) {
	two := hyper(2, 2) // node 0: 0-1,4-5; node 1: 2-3,6-7
	for name, c := range map[string]struct {
		available, reuse string
		n                int
		want             string
	}{
		"any node":           {"0-7", "", 4, "[{1 true} {2 true} {3 false}]"},
		"both nodes":         {"0-7", "", 5, "[{3 true}]"},
		"one node is taken":  {"2-3,6-7", "", 2, "[{2 true} {3 false}]"},
		"would fit one node": {"0,2", "", 2, "[{3 false}]"},
		"reused ones count":  {"2", "3", 2, "[{2 true} {3 false}]"},
		"too many":           {"0", "", 2, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(hints(two, set(c.available), set(c.reuse), c.n)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func pinned(name, cpus string) v1.Container {
	l := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus), v1.ResourceMemory: resource.MustParse("1Mi")}
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: l, Requests: l}}
}

func podOf(uid string, cs ...v1.Container) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: v1.PodSpec{Containers: cs}}
}

func config(t *testing.T, m *machine.Topology, reserved string) Config {
	return Config{Policy: Static, Machine: m, Reserved: set(reserved), StateFile: filepath.Join(t.TempDir(), "cpu_manager_state"),
		Changed: func() {}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func manager(t *testing.T, c Config) *Manager {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func allocate(t *testing.T, m *Manager, pod *v1.Pod) {
	t.Helper()
	for _, cs := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range cs {
			if err := m.Allocate(pod, &cs[i], 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestOnlyWholeCPUsOfGuaranteedPodsAreExclusive(t *testing.T) {
	burstable := podOf("b", pinned("c", "1"), v1.Container{Name: "none"})
	withPodResources := podOf("p", pinned("c", "1"))
	withPodResources.Spec.Resources = &v1.ResourceRequirements{}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want int
	}{
		"whole":              {podOf("w", pinned("c", "2")), 2},
		"fraction":           {podOf("f", pinned("c", "1500m")), 0},
		"whole in thousands": {podOf("m", pinned("c", "2000m")), 2},
		"burstable":          {burstable, 0},
		"pod resources":      {withPodResources, 0},
	} {
		if got := Request(c.pod, &c.pod.Spec.Containers[0]); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestExclusiveCPUsLeaveThePool(t *testing.T) {
	cfg := config(t, single(4), "0")
	changes := 0
	cfg.Changed = func() { changes++ }
	m := manager(t, cfg)
	pod := podOf("u", pinned("a", "1"), pinned("b", "2"))
	allocate(t, m, pod)
	a, _ := m.Exclusive("u", "a")
	b, _ := m.Exclusive("u", "b")
	if a.String() != "1" || b.String() != "2-3" || m.For("other", "c").String() != "0" || !m.HasExclusive("u") || changes != 2 {
		t.Errorf("a %s, b %s, pool %s, %d changes", a, b, m.For("other", "c"), changes)
	}
	if err := m.Allocate(podOf("v", pinned("a", "1")), &podOf("v", pinned("a", "1")).Spec.Containers[0], 0); err == nil {
		t.Error("the reserved CPU was given away")
	}
	again := manager(t, cfg)
	if got, _ := again.Exclusive("u", "b"); got.String() != "2-3" {
		t.Errorf("after a restart b has %s", got)
	}
	again.Release("u")
	if again.For("other", "c").String() != "0-3" || again.HasExclusive("u") {
		t.Errorf("pool after the end: %s", again.For("other", "c"))
	}
}

func TestStrictReservationKeepsThePoolOffTheReservedCPUs(t *testing.T) {
	cfg := config(t, single(4), "0-1")
	cfg.Options.StrictReservation = true
	m := manager(t, cfg)
	if got := m.For("u", "c"); got.String() != "2-3" {
		t.Errorf("pool %s", got)
	}
	allocate(t, m, podOf("own", pinned("c", "2")))
	if got := m.For("u", "c"); got.String() != "0-1" {
		t.Errorf("with nothing left to share: %s", got)
	}
}

func TestInitContainersLeaveTheirCPUs(t *testing.T) {
	m := manager(t, config(t, single(5), "0"))
	always := v1.ContainerRestartPolicyAlways
	side := pinned("side", "1")
	side.RestartPolicy = &always
	pod := podOf("u", pinned("a", "2"), pinned("b", "1"))
	pod.Spec.InitContainers = []v1.Container{pinned("i0", "4"), side, pinned("i1", "3")}
	if got := podRequest(pod); got != 4 {
		t.Errorf("the pod requests %d", got)
	}
	allocate(t, m, pod)
	all := cpuset.New()
	for name, n := range map[string]int{"side": 1, "a": 2, "b": 1} {
		set, _ := m.Exclusive("u", name)
		if set.Size() != n || !all.Intersection(set).IsEmpty() {
			t.Errorf("%s has %s, the ones before it %s", name, set, all)
		}
		all = all.Union(set)
	}
	s, _ := m.Exclusive("u", "side")
	if i1, _ := m.Exclusive("u", "i1"); !i1.Intersection(s).IsEmpty() {
		t.Errorf("the sidecar's %s is given to an init container that starts later: %s", s, i1)
	}
}

func TestFullCoresOnly(t *testing.T) {
	cfg := config(t, hyper(1, 3), "0")
	cfg.Options.FullCores = true
	m := manager(t, cfg)
	for n, says := range map[string]string{
		"1": "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2",
		"6": "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 4, requested CPUs = 6, CPUs per core = 2",
	} {
		pod := podOf("u", pinned("c", n))
		var smt SMTAlignmentError
		if err := m.Allocate(pod, &pod.Spec.Containers[0], 0); !errors.As(err, &smt) || err.Error() != says {
			t.Errorf("%s CPUs: %v", n, err)
		}
	}
	allocate(t, m, podOf("u", pinned("c", "4")))
	if got, _ := m.Exclusive("u", "c"); got.String() != "1-2,4-5" {
		t.Errorf("got %s", got)
	}
}

func TestStartsThatAreRefused(t *testing.T) {
	withState := func(content string) Config {
		cfg := config(t, single(4), "0")
		if err := os.WriteFile(cfg.StateFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	none := withState(`{"policyName":"static","defaultCpuSet":"0,2-3","entries":{"u":{"c":"1"}}}`)
	none.Policy = None
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"no reserved CPU":      {config(t, single(4), ""), "at least one reserved CPU"},
		"reserved CPU missing": {config(t, single(4), "7"), "the machine has 0-3"},
		"other policy":         {none, `configured policy "none" differs from state checkpoint policy "static"`},
		"reserved since":       {withState(`{"policyName":"static","entries":{"u":{"c":"0"}}}`), "reserved or not online"},
		"CPU gone":             {withState(`{"policyName":"static","entries":{"u":{"c":"5"}}}`), "reserved or not online"},
		"two pods":             {withState(`{"policyName":"static","entries":{"u":{"c":"1"},"v":{"c":"1-2"}}}`), "two pods have the CPUs 1"},
		"damaged":              {withState(`{`), "drain this node and delete"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	empty := withState(`{"policyName":"static","defaultCpuSet":"0-3"}`)
	empty.Policy = None
	if m := manager(t, empty); !m.For("u", "c").IsEmpty() || m.Wants(podOf("u", pinned("c", "1"))) {
		t.Error("the policy none restricts containers")
	}
}

func TestParsePolicy(t *testing.T) {
	p, o, err := ParsePolicy("static", map[string]string{"full-pcpus-only": "true", "strict-cpu-reservation": "false"})
	if err != nil || p != Static || !o.FullCores || o.StrictReservation {
		t.Errorf("%v %+v %v", p, o, err)
	}
	for _, c := range []struct {
		policy string
		option map[string]string
	}{{"dynamic", nil}, {"static", map[string]string{"align-by-socket": "true"}}, {"static", map[string]string{"full-pcpus-only": "yes!"}}, {"none", map[string]string{"full-pcpus-only": "true"}}} {
		if _, _, err := ParsePolicy(c.policy, c.option); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
