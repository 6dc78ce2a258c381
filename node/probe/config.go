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

// String returns the name as users read it in events.
func (k Kind) String() string {
	switch k {
	case Liveness:
		return "Liveness"
	case Readiness:
		return "Readiness"
	case Startup:
		return "Startup"
	}
	return "Unknown"
}

// spec returns the container's probe of this kind; nil when it has none.
func (k Kind) spec(c *v1.Container) *v1.Probe {
	switch k {
	case Liveness:
		return c.LivenessProbe
	case Readiness:
		return c.ReadinessProbe
	}
	return c.StartupProbe
}

// initial is the state of a probe of this kind before any result counts.
func (k Kind) initial() Result {
	switch k {
	case Liveness:
		return Success
	case Readiness:
		return Failure
	}
	return Unknown
}

// Result is the state of a probe once its thresholds are taken into account.
type Result uint8

const (
	// Unknown means that no threshold has been reached yet.
	Unknown Result = iota
	Success
	Failure
)

// String returns the name in lower case.
func (r Result) String() string {
	switch r {
	case Success:
		return "success"
	case Failure:
		return "failure"
	}
	return "unknown"
}

// ExecFunc runs cmd in a container and returns its exit code and its combined output. An error that wraps ErrTimeout
// or context.DeadlineExceeded says that it did not end in time; any other one, that it could not be run at all.
type ExecFunc func(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (exit int32, output []byte, err error)

// ErrTimeout is what an ExecFunc returns when the command did not end within its timeout.
var ErrTimeout = errors.New("command timed out")

// Config is what a Manager needs.
type Config struct {
	// Exec runs a command in a container; nil makes every exec probe an error.
	Exec ExecFunc
	// Results is told each time the state of a probe changes, and each time a failure counts again past its
	// threshold. Before the first call, liveness counts as Success, readiness as Failure and startup as Unknown. It
	// runs on the probe's goroutine and must not call Start, Stop or Close. After Stop has returned it is not
	// called for that container.
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
