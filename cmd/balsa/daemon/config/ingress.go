package config

import (
	"fmt"
	"maps"

	"github.com/balsahq/balsa/overlay/ingress"
)

// ingressClass is the IngressClass of a new cluster.
const ingressClass = "balsa"

// Ingress configures how this node serves HTTP from outside to Services.
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

// Class returns the name of the IngressClass that a server creates, "" for none.
func (c *Ingress) Class() string {
	if c.Enabled {
		return ingressClass
	}
	return ""
}

// Labels returns the labels of this machine's Node: the given ones and, when it serves no Ingress, the one that says so.
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
