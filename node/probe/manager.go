package probe

import (
	"context"
	"errors"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// Kind says which of a container's three probes is meant.
type Kind uint8

const (
	Liveness Kind = iota + 1
	Readiness
	Startup
)

// Result is the state of a probe once its thresholds are taken into account.
type Result uint8

const (
	// Unknown means that no threshold has been reached yet.
	Unknown Result = iota
	Success
	Failure
)

// ExecFunc runs cmd in a container and returns its exit code and its combined output. ErrTimeout (wrapped) says that
// it did not end in time.
type ExecFunc func(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (exit int32, output []byte, err error)

// ErrTimeout is what an ExecFunc returns when the command did not end within its timeout.
var ErrTimeout = errors.New("command timed out")

// Config is what a Manager needs.
type Config struct {
	// Exec runs a command in a container.
	Exec ExecFunc
	// Results is told each time the state of a probe changes, and each time a failure counts again past its
	// threshold; never under a lock of this package. After Stop has returned it is not called for that container.
	Results func(podUID types.UID, container string, kind Kind, r Result, message string)
	// Events receives Unhealthy and ProbeWarning events; nil means none.
	Events record.EventRecorder
	// Logger receives debug output; nil means slog.Default().
	Logger *slog.Logger
}

// Target is one running container.
type Target struct {
	Pod         *v1.Pod
	Container   *v1.Container
	ContainerID string
	PodIP       string
	StartedAt   time.Time
	// Started says that the container's startup probe has succeeded already, in an earlier life of the agent, so
	// it is not run again.
	Started bool
}

// Manager runs the probes of containers. Its methods may be called at the same time.
type Manager struct{ cfg Config }

// New returns a Manager. It starts nothing.
func New(cfg Config) *Manager { return &Manager{cfg: cfg} }

// Start begins the probes of a container that has just been started. A second call with the same ContainerID does
// nothing; one with another ContainerID replaces the first.
func (m *Manager) Start(t Target) {}

// Stop ends every probe of the container and waits until none runs.
func (m *Manager) Stop(podUID types.UID, container string) {}

// StopKind ends the probes of the given kinds only: a pod being deleted keeps its readiness probe.
func (m *Manager) StopKind(podUID types.UID, container string, kinds ...Kind) {}

// StopPod ends every probe of the pod.
func (m *Manager) StopPod(podUID types.UID) {}

// Close ends every probe and waits for them.
func (m *Manager) Close() {}
