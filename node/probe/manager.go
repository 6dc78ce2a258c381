package probe

import (
	"context"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/fault"
)

// Manager runs the probes of containers. Its methods may be called at the same time.
type Manager struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	running map[types.UID]map[string]*probes // by pod and container
}

// probes is what runs for one container.
type probes struct {
	containerID string
	workers     map[Kind]*worker
}

// New returns a Manager. It starts nothing.
func New(cfg Config) *Manager {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Manager{cfg: cfg, log: cfg.Logger, running: map[types.UID]map[string]*probes{}}
}

// Start begins the probes of a container that has just been started. A second call with the same ContainerID does
// nothing; one with another ContainerID replaces the first.
func (m *Manager) Start(t Target) {
	for {
		m.mu.Lock()
		old := m.running[t.Pod.UID][t.Container.Name]
		if old == nil {
			m.startLocked(t)
			m.mu.Unlock()
			return
		}
		same := old.containerID == t.ContainerID
		m.mu.Unlock()
		if same {
			return
		}
		m.Stop(t.Pod.UID, t.Container.Name)
	}
}

func (m *Manager) startLocked(t Target) {
	p := &probes{containerID: t.ContainerID, workers: map[Kind]*worker{}}
	started := make(chan struct{})
	if t.Container.StartupProbe == nil || t.Started {
		close(started)
	}
	for _, kind := range []Kind{Startup, Readiness, Liveness} {
		spec := kind.spec(t.Container)
		if spec == nil || (kind == Startup && t.Started) {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		w := &worker{
			m: m, target: t, kind: kind, spec: withDefaults(spec), started: started,
			cancel: cancel, done: make(chan struct{}), state: kind.initial(),
		}
		p.workers[kind] = w
		go fault.Contained("node/probe", func() { w.run(ctx) })()
	}
	if len(p.workers) == 0 {
		return
	}
	byContainer := m.running[t.Pod.UID]
	if byContainer == nil {
		byContainer = map[string]*probes{}
		m.running[t.Pod.UID] = byContainer
	}
	byContainer[t.Container.Name] = p
}

// withDefaults fills in what the API server's defaulting would.
func withDefaults(p *v1.Probe) *v1.Probe {
	out := p.DeepCopy()
	for field, value := range map[*int32]int32{&out.TimeoutSeconds: 1, &out.PeriodSeconds: 10, &out.SuccessThreshold: 1, &out.FailureThreshold: 3} {
		if *field <= 0 {
			*field = value
		}
	}
	return out
}

// Stop ends every probe of the container and waits until none runs.
func (m *Manager) Stop(podUID types.UID, container string) {
	m.mu.Lock()
	p := m.running[podUID][container]
	delete(m.running[podUID], container)
	if len(m.running[podUID]) == 0 {
		delete(m.running, podUID)
	}
	m.mu.Unlock()
	if p != nil {
		p.stop(Liveness, Readiness, Startup)
	}
}

// StopKind ends the container's probes of the given kinds: a pod that is being deleted keeps its readiness probe.
func (m *Manager) StopKind(podUID types.UID, container string, kinds ...Kind) {
	m.mu.Lock()
	p := m.running[podUID][container]
	m.mu.Unlock()
	if p != nil {
		p.stop(kinds...)
	}
}

// StopPod ends every probe of the pod and waits until none runs.
func (m *Manager) StopPod(podUID types.UID) {
	m.mu.Lock()
	all := m.running[podUID]
	delete(m.running, podUID)
	m.mu.Unlock()
	for _, p := range all {
		p.stop(Liveness, Readiness, Startup)
	}
}

// Close ends every probe and waits for them.
func (m *Manager) Close() {
	m.mu.Lock()
	var pods []types.UID
	for uid := range m.running {
		pods = append(pods, uid)
	}
	m.mu.Unlock()
	for _, uid := range pods {
		m.StopPod(uid)
	}
}

// stop cancels the workers of the kinds and waits for them. workers is not changed after Start, so no lock is needed.
func (p *probes) stop(kinds ...Kind) {
	for _, k := range kinds {
		if w := p.workers[k]; w != nil {
			w.cancel()
		}
	}
	for _, k := range kinds {
		if w := p.workers[k]; w != nil {
			<-w.done
		}
	}
}
