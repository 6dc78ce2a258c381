package cpumanager

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node/machine"
	"github.com/balsahq/balsa/node/topology"
)

// Policy says whether containers get CPUs of their own.
type Policy string

const (
	// None lets every container run on every CPU.
	None Policy = "none"
	// Static gives whole CPUs to containers of Guaranteed pods.
	Static Policy = "static"
)

// Options refine the policy Static. The names are upstream's; its alpha and beta options are not known here.
type Options struct {
	// FullCores gives CPUs by whole cores only (full-pcpus-only).
	FullCores bool
	// StrictReservation keeps the containers that share CPUs off the reserved ones (strict-cpu-reservation).
	StrictReservation bool
}

// ParsePolicy returns the policy and its options from their names and values.
func ParsePolicy(policy string, options map[string]string) (Policy, Options, error) {
	var o Options
	var errs []error
	if policy != string(None) && policy != string(Static) {
		errs = append(errs, fmt.Errorf("policy %q: give %s or %s", policy, None, Static))
	}
	known := map[string]*bool{"full-pcpus-only": &o.FullCores, "strict-cpu-reservation": &o.StrictReservation}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		to := known[name]
		if to == nil {
			errs = append(errs, fmt.Errorf("option %q is not known; known: full-pcpus-only, strict-cpu-reservation", name))
			continue
		}
		var err error
		if *to, err = strconv.ParseBool(options[name]); err != nil {
			errs = append(errs, fmt.Errorf("option %s=%q: give true or false", name, options[name]))
		}
	}
	if len(options) > 0 && policy == string(None) {
		errs = append(errs, errors.New("the policy none has no options"))
	}
	return Policy(policy), o, errors.Join(errs...)
}

// Config is what a Manager needs.
type Config struct {
	Policy  Policy
	Options Options
	// Machine is asked for the CPUs; Reserved are those that no container gets for itself.
	Machine  *machine.Topology
	Reserved cpuset.CPUSet
	// StateFile holds the assignments.
	StateFile string
	// Changed is called when the pool of the other containers has changed.
	Changed func()
	Logger  *slog.Logger
}

// Manager knows which container has which CPUs.
type Manager struct {
	cfg Config

	mu       sync.Mutex
	assigned assignments
}

// assignments holds the CPUs of containers by pod and container.
type assignments map[types.UID]map[string]cpuset.CPUSet

// New returns a Manager with the assignments of the state file. It refuses what does not go with them.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, assigned: assignments{}}
	if cfg.Policy == Static {
		switch all := cfg.Machine.All(); {
		case cfg.Reserved.IsEmpty():
			return nil, errors.New("cpumanager: the policy static needs at least one reserved CPU, for the system and the containers that share")
		case !cfg.Reserved.IsSubsetOf(all):
			return nil, fmt.Errorf("cpumanager: reserved CPUs %s: the machine has %s", cfg.Reserved, all)
		}
	}
	if err := m.load(); err != nil {
		return nil, fmt.Errorf("cpumanager: %w", err)
	}
	return m, nil
}

// Reserve returns n CPUs to keep back where no list of them is given.
func Reserve(t *machine.Topology, n int) (cpuset.CPUSet, error) { return take(t, t.All(), n) }

// Wants reports whether a container of the pod is to have CPUs of its own.
func (m *Manager) Wants(pod *v1.Pod) bool { return m.cfg.Policy == Static && podRequest(pod) > 0 }

// pool returns the CPUs that no container has for itself, and that containers may share; the lock is held.
func (m *Manager) pool() cpuset.CPUSet {
	free := m.cfg.Machine.All()
	if m.cfg.Options.StrictReservation {
		free = free.Difference(m.cfg.Reserved)
	}
	for _, containers := range m.assigned {
		for _, set := range containers {
			free = free.Difference(set)
		}
	}
	return free
}

// SMTAlignmentError is the refusal of the option full-pcpus-only. Its text is upstream's.
type SMTAlignmentError struct{ text string }

func (e SMTAlignmentError) Error() string { return "SMT Alignment Error: " + e.text }

// checkCores returns why the option full-pcpus-only cannot be met; the lock is held.
func (m *Manager) checkCores(n int) error {
	threads := m.cfg.Machine.ThreadsPerCore()
	if !m.cfg.Options.FullCores {
		return nil
	}
	if n%threads != 0 {
		return SMTAlignmentError{fmt.Sprintf("requested %d cpus not multiple cpus per core = %d", n, threads)}
	}
	kept := map[int]bool{}
	for _, c := range m.cfg.Machine.CPUs {
		kept[c.Core] = kept[c.Core] || m.cfg.Reserved.Contains(c.ID)
	}
	whole := m.pool().Difference(m.cfg.Machine.Where(func(c machine.CPU) bool { return kept[c.Core] })).Size()
	if n > whole {
		return SMTAlignmentError{fmt.Sprintf("not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d", whole, n, threads)}
	}
	return nil
}

// Allocate gives the container its CPUs, of these NUMA nodes as far as they suffice. CPUs that it has already are kept.
func (m *Manager) Allocate(pod *v1.Pod, c *v1.Container, near topology.Nodes) error {
	n := Request(pod, c)
	if m.cfg.Policy != Static || n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if set, has := m.assigned[pod.UID][c.Name]; has && set.Size() == n {
		return nil
	}
	if err := m.checkCores(n); err != nil {
		return err
	}
	set, err := takeNear(m.cfg.Machine, m.pool().Difference(m.cfg.Reserved).Union(m.reusable(pod)), n, near)
	if err != nil {
		return err
	}
	if m.assigned[pod.UID] == nil {
		m.assigned[pod.UID] = map[string]cpuset.CPUSet{}
	}
	m.assigned[pod.UID][c.Name] = set
	if err := m.save(); err != nil {
		delete(m.assigned[pod.UID], c.Name)
		return err
	}
	m.cfg.Changed()
	return nil
}

// reusable returns the CPUs of the pod's init containers that end before the others start, without those that another of its
// containers has taken over; the lock is held.
func (m *Manager) reusable(pod *v1.Pod) cpuset.CPUSet {
	left, kept := cpuset.New(), cpuset.New()
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podutil.IsRestartableInitContainer(c) {
			kept = kept.Union(m.assigned[pod.UID][c.Name])
		} else {
			left = left.Union(m.assigned[pod.UID][c.Name])
		}
	}
	for i := range pod.Spec.Containers {
		kept = kept.Union(m.assigned[pod.UID][pod.Spec.Containers[i].Name])
	}
	return left.Difference(kept)
}

// Hints returns from which NUMA nodes the container could have its CPUs.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	n := Request(pod, c)
	if m.cfg.Policy != Static || n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if set, has := m.assigned[pod.UID][c.Name]; has && set.Size() == n {
		return m.hint(set, cpuset.New(), n)
	}
	return m.hint(m.pool().Difference(m.cfg.Reserved), m.reusable(pod), n)
}

// PodHints returns from which NUMA nodes all containers of the pod could have their CPUs.
func (m *Manager) PodHints(pod *v1.Pod) topology.Hints {
	n := podRequest(pod)
	if m.cfg.Policy != Static || n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	own := cpuset.New()
	for _, set := range m.assigned[pod.UID] {
		own = own.Union(set)
	}
	if own.Size() == n {
		return m.hint(own, cpuset.New(), n)
	}
	return m.hint(m.pool().Difference(m.cfg.Reserved), own, n)
}

func (m *Manager) hint(available, reuse cpuset.CPUSet, n int) topology.Hints {
	return topology.Hints{string(v1.ResourceCPU): hints(m.cfg.Machine, available, reuse, n)}
}

// Exclusive returns the CPUs that a container has for itself, and whether it has any.
func (m *Manager) Exclusive(uid types.UID, container string) (cpuset.CPUSet, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set, has := m.assigned[uid][container]
	return set, has
}

// HasExclusive reports whether a container of the pod has CPUs for itself.
func (m *Manager) HasExclusive(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.assigned[uid]) > 0
}

// For returns the CPUs on which a container has to run; an empty set is no restriction. When strict reservation leaves nothing
// to share, containers without CPUs of their own run on the reserved ones, and not on those of others.
func (m *Manager) For(uid types.UID, container string) cpuset.CPUSet {
	if m.cfg.Policy != Static {
		return cpuset.New()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if set, has := m.assigned[uid][container]; has {
		return set
	}
	if pool := m.pool(); !pool.IsEmpty() {
		return pool
	}
	return m.cfg.Reserved
}

// Allocatable returns the CPUs that containers can get for themselves.
func (m *Manager) Allocatable() cpuset.CPUSet {
	if m.cfg.Policy != Static {
		return cpuset.New()
	}
	return m.cfg.Machine.All().Difference(m.cfg.Reserved)
}

// Release gives back the CPUs of a pod.
func (m *Manager) Release(uid types.UID) {
	m.KeepOnly(func(other types.UID) bool { return other != uid })
}

// KeepOnly gives back the CPUs of the pods that are no more.
func (m *Manager) KeepOnly(there func(types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.assigned)
	maps.DeleteFunc(m.assigned, func(uid types.UID, _ map[string]cpuset.CPUSet) bool { return !there(uid) })
	if len(m.assigned) == before {
		return
	}
	if err := m.save(); err != nil {
		m.cfg.Logger.Warn("assignments of CPUs not written; the next start of the agent takes them up as they were before", "err", err)
	}
	m.cfg.Changed()
}
