package allocation

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/cpumanager"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/deviceplugin"
	"github.com/balsahq/balsa/node/topology"
)

// Config is what a Manager needs.
type Config struct {
	Policy topology.Policy
	Scope  topology.Scope
	// NUMANodes are those of the machine.
	NUMANodes topology.Nodes
	Devices   *deviceplugin.Manager
	CPUs      *cpumanager.Manager
}

// Manager allocates by one policy.
type Manager struct {
	cfg     Config
	devices *deviceplugin.Manager
	cpus    *cpumanager.Manager
	placing sync.Mutex // from the hints to what follows from them without waiting
}

// New returns a Manager. A policy that aligns resources refuses machines with more NUMA nodes than topology.MaxNodes.
func New(cfg Config) (*Manager, error) {
	if err := topology.Validate(cfg.Policy, cfg.Scope); err != nil {
		return nil, fmt.Errorf("allocation: %w", err)
	}
	if n := cfg.NUMANodes.Count(); cfg.Policy != topology.None && n > topology.MaxNodes {
		return nil, fmt.Errorf("allocation: the topology policy %s is for machines with up to %d NUMA nodes, and this one has %d", cfg.Policy, topology.MaxNodes, n)
	}
	return &Manager{cfg: cfg, devices: cfg.Devices, cpus: cfg.CPUs}, nil
}

// Refusal is why a pod cannot be served, as its status says it. Reasons and texts are upstream's.
type Refusal struct{ Reason, Message string }

func (r *Refusal) Error() string { return r.Message }

// errAffinity is the refusal of a pod whose resources cannot be near each other.
var errAffinity = &Refusal{"TopologyAffinityError", "Resources cannot be allocated with Topology locality"}

// Wants reports whether the pod has to be admitted before it is started.
func (m *Manager) Wants(pod *v1.Pod) bool {
	return m.devices.Wants(pod) || m.cpus.Wants(pod)
}

// Admit allocates what the pod's containers want. The error is a *Refusal, or ctx.Err() if ctx ended
// first; the pod has nothing then.
func (m *Manager) Admit(ctx context.Context, pod *v1.Pod) error {
	end, err := m.devices.TakeTurn(ctx, pod)
	if err != nil {
		return err
	}
	defer end()
	if err = m.allocateAll(ctx, pod); err == nil {
		return nil
	}
	m.Release(pod.UID)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return refusalOf(err)
}

func refusalOf(err error) *Refusal {
	var r *Refusal
	var cores cpumanager.SMTAlignmentError
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &cores):
		return &Refusal{"SMTAlignmentError", cores.Error()}
	}
	return &Refusal{"UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

func (m *Manager) allocateAll(ctx context.Context, pod *v1.Pod) error {
	place := func(c *v1.Container) (topology.Hint, error) {
		return m.merge(m.cpus.Hints(pod, c), m.devices.Hints(pod, c))
	}
	if m.cfg.Scope == topology.Pod {
		at, err := m.merge(m.cpus.PodHints(pod), m.devices.PodHints(pod))
		if err != nil {
			return err
		}
		place = func(*v1.Container) (topology.Hint, error) { return at, nil }
	}
	for _, c := range containersOf(pod) {
		at, err := m.allocateCPUs(pod, c, place)
		if err != nil {
			return err
		}
		if err := m.devices.Allocate(ctx, pod, c, at.Nodes); err != nil {
			return err
		}
	}
	return nil
}

// allocateCPUs places a container and gives it its CPUs, while no other pod does. Its devices are free until the pod's turn
// ends.
func (m *Manager) allocateCPUs(pod *v1.Pod, c *v1.Container, place func(*v1.Container) (topology.Hint, error)) (topology.Hint, error) {
	m.placing.Lock()
	defer m.placing.Unlock()
	at, err := place(c)
	if err != nil {
		return at, err
	}
	return at, m.cpus.Allocate(pod, c, at.Nodes)
}

func (m *Manager) merge(hints ...topology.Hints) (topology.Hint, error) {
	at, admitted := topology.Merge(m.cfg.Policy, m.cfg.NUMANodes, hints)
	if !admitted {
		return at, errAffinity
	}
	return at, nil
}

// containersOf lists the containers that are allocated for, in the order in which they start.
func containersOf(pod *v1.Pod) (out []*v1.Container) {
	for _, cs := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range cs {
			out = append(out, &cs[i])
		}
	}
	return out
}

// ForContainer returns what a container that is about to start has got.
func (m *Manager) ForContainer(ctx context.Context, pod *v1.Pod, c *v1.Container) (criconfig.Allocation, error) {
	a := criconfig.Allocation{CPUs: m.cpus.For(pod.UID, c.Name).String()}
	_, a.NoCPUQuota = m.cpus.Exclusive(pod.UID, c.Name)
	err := m.devices.ForContainer(ctx, pod, c, &a)
	return a, err
}

// Health returns the allocated devices of a container with their health.
func (m *Manager) Health(uid types.UID, container string) []v1.ResourceStatus {
	return m.devices.Health(uid, container)
}

// Release takes back what a pod has.
func (m *Manager) Release(uid types.UID) {
	m.devices.Release(uid)
	m.cpus.Release(uid)
}

// HasExclusiveCPUs reports whether a container has CPUs for itself; with an empty name, whether any of the pod has.
func (m *Manager) HasExclusiveCPUs(uid types.UID, container string) bool {
	if container == "" {
		return m.cpus.HasExclusive(uid)
	}
	_, has := m.cpus.Exclusive(uid, container)
	return has
}

// KeepOnly takes back what pods have that are no more.
func (m *Manager) KeepOnly(there func(types.UID) bool) {
	m.devices.KeepOnly(there)
	m.cpus.KeepOnly(there)
}
