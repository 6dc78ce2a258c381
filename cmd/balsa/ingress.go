package main

import (
	"context"
	"fmt"
	"maps"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/overlay/ingress"
	"github.com/balsahq/balsa/overlay/ingress/gatewayapi"
)

// ingressClass is the IngressClass of a new cluster.
const ingressClass = "balsa"

// ingressConfig is what can be said of the way from outside to Services by HTTP.
type ingressConfig struct {
	Enabled             bool
	HTTPPort, HTTPSPort int
	MaxConnections      int
	GatewayAPI          bool // server only
}

func defaultIngressConfig() ingressConfig {
	return ingressConfig{Enabled: true, HTTPPort: 80, HTTPSPort: 443}
}

func (c *ingressConfig) bindNode(f *pflag.FlagSet) {
	f.BoolVar(&c.Enabled, "ingress", c.Enabled, "serve Ingresses and Gateways on this node once there are some; false labels the node "+ingress.Label+"=false, on a server no IngressClass is made either")
	f.IntVar(&c.HTTPPort, "ingress-http-port", c.HTTPPort, "port of Ingresses without TLS, and what port 80 of a Gateway means")
	f.IntVar(&c.HTTPSPort, "ingress-https-port", c.HTTPSPort, "port of Ingresses with TLS, and what port 443 of a Gateway means")
	f.IntVar(&c.MaxConnections, "ingress-max-connections", c.MaxConnections, "connections of clients at most; one address may have half of them (default 8192)")
}

func (c *ingressConfig) bindServer(f *pflag.FlagSet) {
	f.BoolVar(&c.GatewayAPI, "gateway-api", c.GatewayAPI, "install the Gateway API's definitions ("+gatewayapi.Version+") and the GatewayClass "+gatewayapi.Class+", where they are missing; upstream's own, applied with kubectl, do as well")
}

func (c *ingressConfig) validate() (faults []error) {
	for flag, port := range map[string]int{"ingress-http-port": c.HTTPPort, "ingress-https-port": c.HTTPSPort} {
		if port < 1 || port > 65535 {
			faults = append(faults, fmt.Errorf("--%s %d: give a port from 1 to 65535", flag, port))
		}
	}
	if c.HTTPPort == c.HTTPSPort {
		faults = append(faults, fmt.Errorf("--ingress-http-port and --ingress-https-port are both %d: give two ports", c.HTTPPort))
	}
	if c.MaxConnections < 0 {
		faults = append(faults, fmt.Errorf("--ingress-max-connections %d: give 1 or more, or 0 for the default", c.MaxConnections))
	}
	return faults
}

// class is the IngressClass that a server makes, "" for none.
func (c *ingressConfig) class() string {
	if c.Enabled {
		return ingressClass
	}
	return ""
}

// labels are those of this node, with what the flags say of it.
func (c *ingressConfig) labels(given map[string]string) map[string]string {
	if c.Enabled {
		return given
	}
	out := maps.Clone(given)
	if out == nil {
		out = map[string]string{}
	}
	out[ingress.Label] = "false"
	return out
}

// startIngress serves Ingresses and Gateways on this node.
func (a agentParts) startIngress(network ingress.Config) error {
	if !a.cfg.Ingress.Enabled {
		return nil
	}
	network.NodeName, network.Client, network.Rest, network.Logger = a.cfg.NodeName, a.client, a.rest, a.log
	network.HTTPPort, network.HTTPSPort = uint16(a.cfg.Ingress.HTTPPort), uint16(a.cfg.Ingress.HTTPSPort)
	network.MaxConnections = a.cfg.Ingress.MaxConnections
	served, err := ingress.NewNode(network)
	if err != nil {
		return err
	}
	a.parts.start("ingress", func(ctx context.Context) error {
		if !await(ctx, a.apiReady) {
			return nil
		}
		return served.Run(ctx)
	})
	return nil
}

// ingressStatus is what writes the status of Ingresses and Gateways, once in the cluster.
func (s *server) ingressStatus(env workqueue.Env) (workqueue.Runner, error) {
	return ingress.NewStatus(ingress.StatusConfig{
		Client: env.Client, Rest: env.Rest, Secrets: env.Reader, Informers: env.Informers, Events: env.Events, Logger: env.Log,
		HTTPPort: uint16(s.cfg.Ingress.HTTPPort), HTTPSPort: uint16(s.cfg.Ingress.HTTPSPort),
	})
}

// startGatewayAPI installs the Gateway API's definitions when asked to.
func (s *server) startGatewayAPI() {
	if !s.cfg.Ingress.GatewayAPI {
		return
	}
	s.parts.keep("Gateway API", func(ctx context.Context) error {
		if !await(ctx, s.api.Ready()) {
			return nil
		}
		client := s.api.Client(control.Identity{User: "balsa:installer", Groups: []string{"system:masters"}})
		if err := gatewayapi.Install(ctx, client); err != nil && ctx.Err() == nil {
			s.log.Error("the Gateway API's definitions are not installed; they are tried again at the next start", "error", err)
		}
		<-ctx.Done()
		return nil
	})
}
