package main

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/overlay/healthport"
)

// proxyPorts are where kube-proxy's questions are answered; "" is nowhere.
type proxyPorts struct{ Healthz, Status string }

func defaultProxyPorts() proxyPorts {
	return proxyPorts{Healthz: healthport.DefaultNodeAddress, Status: healthport.DefaultStatusAddress}
}

func (p *proxyPorts) bind(f *pflag.FlagSet) {
	f.StringVar(&p.Healthz, "proxy-healthz-bind-address", p.Healthz, "address and port at which load balancers ask this node for /healthz and /livez, as of kube-proxy; 0.0.0.0 is every address, empty is none")
	f.StringVar(&p.Status, "proxy-metrics-bind-address", p.Status, "address and port at which programs of this machine ask for /proxyMode, as of kube-proxy; empty is none")
}

func (p *proxyPorts) validate() []error {
	var faults []error
	for flag, address := range map[string]string{"proxy-healthz-bind-address": p.Healthz, "proxy-metrics-bind-address": p.Status} {
		if address == "" {
			continue
		}
		host, port, err := net.SplitHostPort(address)
		if n, numErr := strconv.ParseUint(port, 10, 16); err != nil || numErr != nil || n == 0 || net.ParseIP(host) == nil {
			faults = append(faults, fmt.Errorf("--%s %q: give an IP address and a port, such as 127.0.0.1:10256", flag, address))
		}
	}
	return faults
}
