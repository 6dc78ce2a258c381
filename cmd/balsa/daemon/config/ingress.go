package config

import (
	"fmt"
	"maps"

	"github.com/balsahq/balsa/overlay/ingress"
)

// ingressClass is the IngressClass of a new cluster.
const ingressClass = "balsa"

// Ingress is what can be said of the way from outside to Services by HTTP.
type Ingress struct {
	Enabled             bool
	HTTPPort, HTTPSPort int
	MaxConnections      int
}

func defaultIngress() Ingress {
	return Ingress{Enabled: true, HTTPPort: 80, HTTPSPort: 443}
}

func (c *Ingress) validate() (faults []error) {
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

// Class is the IngressClass that a server makes, "" for none.
func (c *Ingress) Class() string {
	if c.Enabled {
		return ingressClass
	}
	return ""
}

// Labels are those of this node, with what the flags say of it.
func (c *Ingress) Labels(given map[string]string) map[string]string {
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
