package volume

import (
	"errors"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Config is what a Manager needs.
type Config struct {
	// RootDir is the node agent's directory; a pod's volumes are below RootDir/pods/<uid>/volumes.
	RootDir string
	// NodeName is the name of the Node object this agent runs.
	NodeName string
	// Client reads ConfigMaps, Secrets, claims and volumes, and asks for service-account tokens.
	Client kubernetes.Interface
	// NodeAllocatable returns the node's allocatable resources: what a container without a limit may use.
	NodeAllocatable func() v1.ResourceList
	// NodeLabels returns the Node object's labels; nil leaves the node affinity of a PersistentVolume unchecked.
	NodeLabels func() map[string]string
	// CSI mounts volumes of CSI drivers; nil means that there are none.
	CSI CSI
	// Services lists every Service of the cluster, for the service variables of a container; an error delays
	// the container. nil means no service variables.
	Services func() ([]*v1.Service, error)
	// NoRecursiveReadOnly says that the container runtime cannot make mounts recursively read-only.
	NoRecursiveReadOnly bool
	// SourceFound is called without locks when a ConfigMap or Secret of a pod's volumes appears or changes. A SetUp that failed
	// because it was missing can then be tried at once. nil means that no caller waits for it.
	SourceFound func(pod types.UID)
	// Logger receives what goes wrong in the background; nil means slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.RootDir == "" {
		errs = append(errs, errors.New("volume: RootDir is empty"))
	}
	if c.NodeName == "" {
		errs = append(errs, errors.New("volume: NodeName is empty"))
	}
	if c.Client == nil {
		errs = append(errs, errors.New("volume: Client is nil"))
	}
	if c.NodeAllocatable == nil {
		errs = append(errs, errors.New("volume: NodeAllocatable is nil"))
	}
	return errors.Join(errs...)
}
