package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Mounts is what SetUp made, by volume name.
type Mounts map[string]Volume

// Volume is one volume of one pod, ready to be mounted into containers.
type Volume struct {
	// HostPath is the directory, file or device on this host.
	HostPath string
	// ReadOnly says that containers get it read-only whatever their volumeMounts say.
	ReadOnly bool
	// Block says that HostPath is a block device for volumeDevices.
	Block bool
}

// EnvInput is what the environment of a container depends on besides the pod's spec.
type EnvInput struct {
	PodIPs  []string // status.podIP, status.podIPs
	HostIPs []string // status.hostIP, status.hostIPs
	Mounts  Mounts   // where fileKeyRef finds its volume
}

// Manager materialises the volumes of pods and keeps them up to date. Its methods may be called at the same time.
type Manager struct{ cfg Config }

// New returns a Manager for cfg. It starts nothing.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Manager{cfg: cfg}, nil
}

// Run keeps ConfigMap, Secret, projected and token volumes as new as their sources until ctx ends.
func (m *Manager) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// SetUp materialises every volume of pod that a container uses. It is idempotent: called again with a newer pod it
// brings downward API volumes up to date. The error's text is what the user reads in a FailedMount event.
func (m *Manager) SetUp(ctx context.Context, pod *v1.Pod) (Mounts, error) { return nil, nil }

// ContainerMounts returns the CRI mounts for the container's volumeMounts. env is the container's environment, for
// subPathExpr. cleanup undoes what was made for this container only (subPath binds) and may be called more than
// once; it must not be called before the container has gone.
func (m *Manager) ContainerMounts(pod *v1.Pod, c *v1.Container, mounts Mounts, env []*runtimeapi.KeyValue) (ms []*runtimeapi.Mount, cleanup func(), err error) {
	return nil, func() {}, nil
}

// ContainerDevices returns the CRI devices for the container's volumeDevices.
func (m *Manager) ContainerDevices(c *v1.Container, mounts Mounts) ([]*runtimeapi.Device, error) {
	return nil, nil
}

// TearDown unmounts and removes every volume of the pod. It is idempotent, works for pods of an earlier life of the
// agent, and never touches what lies outside the pod's directory.
func (m *Manager) TearDown(ctx context.Context, podUID types.UID) error { return nil }

// CleanUpOrphans tears down the volumes of every pod found on disk for which keep is false.
func (m *Manager) CleanUpOrphans(ctx context.Context, keep func(types.UID) bool) error { return nil }

// Env returns the environment of a container: service variables, envFrom, env, in the order in which later ones
// override earlier ones. The error's text is what the user reads in a CreateContainerConfigError.
func (m *Manager) Env(ctx context.Context, pod *v1.Pod, c *v1.Container, in EnvInput) ([]*runtimeapi.KeyValue, error) {
	return nil, nil
}
