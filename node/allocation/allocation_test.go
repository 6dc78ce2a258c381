package allocation

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node/cpumanager"
	"github.com/balsahq/balsa/node/deviceplugin"
	"github.com/balsahq/balsa/node/machine"
	"github.com/balsahq/balsa/node/topology"
)

// knownDevices returns a manager that knows a resource from before, whose plug-in is not there.
func knownDevices(t *testing.T) *deviceplugin.Manager {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "balsa_allocations.json"), []byte(`{"resources":["example.com/gpu"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := deviceplugin.New(deviceplugin.Config{Dir: dir, Changed: func() {}, HealthChanged: func([]types.UID) {}, Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// cpusOf returns a manager of a machine with two NUMA nodes of four CPUs each, of which 0 is reserved.
func cpusOf(t *testing.T, policy cpumanager.Policy) *cpumanager.Manager {
	m := &machine.Topology{}
	for id := range 8 {
		m.CPUs = append(m.CPUs, machine.CPU{ID: id, Core: id, Socket: id / 4, Node: id / 4})
	}
	c, err := cpumanager.New(cpumanager.Config{Policy: policy, Machine: m, Reserved: cpuset.New(0), StateFile: filepath.Join(t.TempDir(), "state"),
		Changed: func() {}, Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func cpuPod(uid string, cpus ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}}
	for i, n := range cpus {
		l := v1.ResourceList{v1.ResourceCPU: quantity.MustParse(n), v1.ResourceMemory: quantity.MustParse("1Mi")}
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprintf("c%d", i), Resources: v1.ResourceRequirements{Limits: l, Requests: l}})
	}
	return pod
}

func TestPoliciesPlaceAndRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		policy topology.Policy
		scope  topology.Scope
		pods   []*v1.Pod
		reason string // of the last one; "" is admitted
		cpus   string // of its containers
	}{
		"one node":                  {topology.SingleNUMANode, topology.Container, []*v1.Pod{cpuPod("a", "4")}, "", "4-7"},
		"no node has so many":       {topology.SingleNUMANode, topology.Container, []*v1.Pod{cpuPod("a", "5")}, "TopologyAffinityError", ""},
		"containers on two nodes":   {topology.SingleNUMANode, topology.Container, []*v1.Pod{cpuPod("a", "3", "3")}, "", "1-3 4-6"},
		"the pod on one node":       {topology.SingleNUMANode, topology.Pod, []*v1.Pod{cpuPod("a", "3", "3")}, "TopologyAffinityError", ""},
		"the pod fits one node":     {topology.SingleNUMANode, topology.Pod, []*v1.Pod{cpuPod("a", "2", "2")}, "", "4-5 6-7"},
		"restricted, spread":        {topology.Restricted, topology.Container, []*v1.Pod{cpuPod("a", "2"), cpuPod("b", "2"), cpuPod("c", "3")}, "TopologyAffinityError", ""},
		"restricted, two needed":    {topology.Restricted, topology.Container, []*v1.Pod{cpuPod("a", "5")}, "", "1,4-7"},
		"best effort, spread":       {topology.BestEffort, topology.Container, []*v1.Pod{cpuPod("a", "2"), cpuPod("b", "3"), cpuPod("c", "2")}, "", "3,7"},
		"no CPUs left":              {topology.BestEffort, topology.Container, []*v1.Pod{cpuPod("a", "7"), cpuPod("b", "1")}, "UnexpectedAdmissionError", ""},
		"pods without CPUs to have": {topology.SingleNUMANode, topology.Pod, []*v1.Pod{cpuPod("a", "500m")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cpus := cpusOf(t, cpumanager.Static)
			m, err := New(Config{Policy: c.policy, Scope: c.scope, NUMANodes: topology.NodesOf(0, 1), Devices: knownDevices(t), CPUs: cpus})
			if err != nil {
				t.Fatal(err)
			}
			for i, pod := range c.pods {
				err := m.Admit(t.Context(), pod)
				if i < len(c.pods)-1 && err != nil {
					t.Fatal(err)
				}
				var refused *Refusal
				if i == len(c.pods)-1 && (c.reason == "" && err != nil || c.reason != "" && (!errors.As(err, &refused) || refused.Reason != c.reason)) {
					t.Fatalf("got %v, want %q", err, c.reason)
				}
			}
			last, got := c.pods[len(c.pods)-1], []string{}
			for _, ct := range last.Spec.Containers {
				if set, has := cpus.Exclusive(last.UID, ct.Name); has {
					got = append(got, set.String())
				}
			}
			if s := strings.Join(got, " "); s != c.cpus {
				t.Errorf("CPUs %q, want %q", s, c.cpus)
			}
		})
	}
}

func TestAContainerIsToldItsCPUs(t *testing.T) {
	m, err := New(Config{Policy: topology.None, Scope: topology.Container, NUMANodes: 3, Devices: knownDevices(t), CPUs: cpusOf(t, cpumanager.Static)})
	if err != nil {
		t.Fatal(err)
	}
	own, shares := cpuPod("a", "2"), cpuPod("b", "500m")
	if err := m.Admit(t.Context(), own); err != nil || !m.HasExclusiveCPUs("a", "") || m.HasExclusiveCPUs("a", "other") {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pod  *v1.Pod
		cpus string
		own  bool
	}{{own, "1-2", true}, {shares, "0,3-7", false}} {
		got, err := m.ForContainer(t.Context(), c.pod, &c.pod.Spec.Containers[0])
		if err != nil || got.CPUs != c.cpus || got.NoCPUQuota != c.own {
			t.Errorf("%s: %+v %v", c.pod.Name, got, err)
		}
	}
}

func podWith(limits v1.ResourceList) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{
		{Name: "c", Resources: v1.ResourceRequirements{Limits: limits, Requests: limits}}}}}
}

func TestAPodWhoseDevicesAreNotThereIsRefused(t *testing.T) {
	m, err := New(Config{Policy: topology.None, Scope: topology.Container, NUMANodes: 1, Devices: knownDevices(t), CPUs: cpusOf(t, cpumanager.None)})
	if err != nil {
		t.Fatal(err)
	}
	pod := podWith(v1.ResourceList{"example.com/gpu": quantity.MustParse("1")})
	var refused *Refusal
	if err := m.Admit(t.Context(), pod); !errors.As(err, &refused) || refused.Reason != "UnexpectedAdmissionError" ||
		refused.Message != "Allocate failed due to cannot allocate unregistered device example.com/gpu, which is unexpected" {
		t.Errorf("got %v", err)
	}
	if err := m.Admit(t.Context(), podWith(nil)); err != nil {
		t.Errorf("a pod that wants nothing: %v", err)
	}
}

func TestPoliciesThatTheMachineCannotHave(t *testing.T) {
	for name, cfg := range map[string]Config{
		"unknown policy":      {Policy: "all", Scope: topology.Pod, NUMANodes: 1},
		"unknown scope":       {Policy: topology.None, Scope: "node", NUMANodes: 1},
		"too many NUMA nodes": {Policy: topology.Restricted, Scope: topology.Pod, NUMANodes: 1<<9 - 1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
