package csi

import (
	"errors"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Config is what a Node needs.
type Config struct {
	// RootDir is the node agent's directory, which drivers see under the same path.
	RootDir string
	// NodeName is the name of the Node and of the CSINode object.
	NodeName string
	// Client acts as the node: it reads CSIDrivers, VolumeAttachments and Secrets, and writes the CSINode.
	Client kubernetes.Interface
	// InUse reports whether the Node's status says that the volume is in use here, and asks for it to be written when it
	// does not. No volume that must be attached is mounted before, so that it is not detached under a mount. nil: not asked.
	InUse func(v1.UniqueVolumeName) bool
	// Logger receives what goes wrong in the background; nil means slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.RootDir == "" {
		errs = append(errs, errors.New("csi: RootDir is empty"))
	}
	if c.NodeName == "" {
		errs = append(errs, errors.New("csi: NodeName is empty"))
	}
	if c.Client == nil {
		errs = append(errs, errors.New("csi: Client is nil"))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
