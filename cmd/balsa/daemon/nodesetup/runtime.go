package nodesetup

import (
	"log/slog"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	noderuntime "github.com/balsahq/balsa/node/runtime"
)

// Runtime is the container runtime of a node: the bundled containerd, or another
// program that serves CRI on a socket.
type Runtime struct {
	Endpoint string
	Ready    <-chan struct{} // closed when the bundled containerd answers; nil for another program's socket
}

// StartRuntime starts the bundled containerd, unless cfg names another program's socket.
func StartRuntime(cfg *config.Node, parts *lifecycle.Group, log *slog.Logger) (*Runtime, error) {
	if cfg.RuntimeEndpoint != "" {
		return &Runtime{Endpoint: cfg.RuntimeEndpoint}, nil
	}
	settings := cfg.Containerd()
	settings.Logger = log
	child, err := noderuntime.New(settings)
	if err != nil {
		return nil, err
	}
	parts.Start("container runtime", child.Run)
	return &Runtime{Endpoint: settings.Endpoint(), Ready: child.Ready()}, nil
}
