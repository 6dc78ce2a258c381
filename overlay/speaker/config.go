package speaker

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"k8s.io/client-go/informers"
)

// Config configures an Announcer.
type Config struct {
	NodeName string
	// Informers give Services, EndpointSlices and Nodes. Run starts those it needs, and leaves them running.
	Informers informers.SharedInformerFactory
	// Publish sets an annotation of this machine's Node. The Announcer calls it again after a failure.
	Publish func(ctx context.Context, annotation, value string) error
	// Confirm asks the API, and no cache, whether this machine's Node is ready; nil trusts the informers.
	Confirm func(ctx context.Context) error
	// Inside are the networks of pods and Services, which are no LAN.
	Inside []netip.Prefix
	// NetNS is the path of the network namespace to work in; "" is the namespace of the process.
	NetNS  string
	Logger *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("announce: NodeName is missing"))
	}
	if c.Informers == nil {
		errs = append(errs, errors.New("announce: Informers are missing"))
	}
	if c.Publish == nil {
		errs = append(errs, errors.New("announce: Publish is missing"))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}
