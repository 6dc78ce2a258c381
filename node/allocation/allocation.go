package allocation

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
}

// Manager allocates by one policy.
type Manager struct {
	cfg     Config
	devices *deviceplugin.Manager
}

// New returns a Manager. A policy that aligns resources refuses machines with more NUMA nodes than topology.MaxNodes.
func New(cfg Config) (*Manager, error) {
	if err := topology.Validate(cfg.Policy, cfg.Scope); err != nil {
		return nil, fmt.Errorf("allocation: %w", err)
	}
	if n := cfg.NUMANodes.Count(); cfg.Policy != topology.None && n > topology.MaxNodes {
		return nil, fmt.Errorf("allocation: the topology policy %s is for machines with up to %d NUMA nodes, and this one has %d", cfg.Policy, topology.MaxNodes, n)
	}
	return &Manager{cfg: cfg, devices: cfg.Devices}, nil
}

// Refusal is why a pod cannot be served, as its status says it. Reasons and texts are upstream's.
type Refusal struct{ Reason, Message string }

func (r *Refusal) Error() string { return r.Message }

// errAffinity is the refusal of a pod whose resources cannot be near each other.
var errAffinity = &Refusal{"TopologyAffinityError", "Resources cannot be allocated with Topology locality"}

// Wants reports whether the pod has to be admitted before it is started.
func (m *Manager) Wants(pod *v1.Pod) bool { return m.devices.Wants(pod) }

// Admit allocates what the pod's containers want. The error is a *Refusal, or that of ctx when it has ended; then the pod has
// nothing.
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
	var r *Refusal
	if !errors.As(err, &r) {
		r = &Refusal{"UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	return r
}

func (m *Manager) allocateAll(ctx context.Context, pod *v1.Pod) error {
	for _, c := range containersOf(pod) {
		at, admitted := topology.Merge(m.cfg.Policy, m.cfg.NUMANodes, m.hints(pod, c))
		if !admitted {
			return errAffinity
		}
		if err := m.devices.Allocate(ctx, pod, c, at.Nodes); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) hints(pod *v1.Pod, c *v1.Container) []topology.Hints {
	if m.cfg.Policy == topology.None {
		return nil
	}
	return []topology.Hints{m.devices.Hints(pod, c)}
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
	var a criconfig.Allocation
	return a, m.devices.ForContainer(ctx, pod, c, &a)
}

// Health returns the allocated devices of a container with their health.
func (m *Manager) Health(uid types.UID, container string) []v1.ResourceStatus {
	return m.devices.Health(uid, container)
}

// Release takes back what a pod has.
func (m *Manager) Release(uid types.UID) { m.devices.Release(uid) }

// KeepOnly takes back what pods have that are no more.
func (m *Manager) KeepOnly(there func(types.UID) bool) { m.devices.KeepOnly(there) }
