package config

import (
	"fmt"
	"net"
	"strconv"

	"github.com/balsahq/balsa/overlay/healthport"
)

// Proxy holds the addresses at which the node answers the requests that kube-proxy would; "" is none.
type Proxy struct{ Healthz, Status string }

func defaultProxy() Proxy {
	return Proxy{Healthz: healthport.DefaultNodeAddress, Status: healthport.DefaultStatusAddress}
}

func (p *Proxy) validate() []error {
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
