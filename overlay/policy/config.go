package policy

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/client-go/kubernetes"
)

// Config configures an Engine.
type Config struct {
	// NodeName is the Node to whose pods policies are applied.
	NodeName string
	// Client reads NetworkPolicies, Pods and Namespaces of the whole cluster.
	Client kubernetes.Interface
	// Bridge is the link that pods are attached to.
	Bridge string
	// IPv6 applies policies to IPv6 addresses too.
	IPv6 bool
	// NetNS is the path of the network namespace to work in; "" is the namespace of the process.
	NetNS  string
	Logger *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("policy: "+format, args...))
		}
	}
	must(c.NodeName != "", "NodeName is missing")
	must(c.Client != nil, "Client is missing")
	must(c.Bridge != "" && len(c.Bridge) < 16, "Bridge %q is no name of a link", c.Bridge)
	return errors.Join(errs...)
}
