package nodesetup

import (
	"log/slog"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	noderuntime "github.com/balsahq/balsa/node/runtime"
)

// Runtime is the way to containers: the bundled containerd, or a socket
// that another program serves.
type Runtime struct {
	Endpoint string
	Ready    <-chan struct{} // nil for a foreign socket
}

// StartRuntime starts the bundled container runtime, unless cfg names another.
func StartRuntime(cfg *config.Node, parts *lifecycle.Group, log *slog.Logger) (*Runtime, error) {
	if cfg.RuntimeEndpoint != "" {
		return &Runtime{Endpoint: cfg.RuntimeEndpoint}, nil
	}
	settings := cfg.Runtime()
	settings.Logger = log
	child, err := noderuntime.New(settings)
	if err != nil {
		return nil, err
	}
	parts.Start("container runtime", child.Run)
	return &Runtime{Endpoint: settings.Endpoint(), Ready: child.Ready()}, nil
}
