package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/loadbalancer"
)

// cloudConfig says what the cluster's machines stand on.
type cloudConfig struct {
	Provider string
	Disable  bool   // server only
	Pool     string // server only
}

func (c *cloudConfig) bindNode(f *pflag.FlagSet) {
	f.StringVar(&c.Provider, "cloud-provider", c.Provider, "\"external\" registers this machine's Node so that no pods come before a cloud controller has initialized it: the one of the servers or, with --disable-cloud-controller there, one outside")
}

func (c *cloudConfig) bindServer(f *pflag.FlagSet) {
	f.StringVar(&c.Pool, "load-balancer-pool", c.Pool, "addresses for Services of type LoadBalancer, as a list such as 10.0.0.200-10.0.0.220,192.168.7.0/28,2001:db8::/120; the ConfigMap kube-system/balsa-load-balancer with the key pools comes before it, and may change at any time")
	f.BoolVar(&c.Disable, "disable-cloud-controller", c.Disable, "leave nodes of --cloud-provider=external to a cloud controller manager outside")
}

// pools is where Services of type LoadBalancer get their addresses. Networks that do not parse are left to
// config.Validate.
func (c *cloudConfig) pools(pods, services string) loadbalancer.Config {
	taken := map[string]netip.Prefix{}
	for name, text := range map[string]string{"network of pods": pods, "network of Services": services} {
		for i, part := range strings.Split(text, ",") {
			if p, err := netip.ParsePrefix(strings.TrimSpace(part)); err == nil {
				taken[strings.Repeat("second ", i)+name] = p
			}
		}
	}
	return loadbalancer.Config{Pools: c.Pool, Taken: taken}
}

func (c *cloudConfig) validate(pods, services string) (faults []error) {
	if err := c.pools(pods, services).Validate(); err != nil {
		faults = append(faults, fmt.Errorf("--load-balancer-pool: %w", err))
	}
	if c.Provider != "" && c.Provider != "external" {
		faults = append(faults, fmt.Errorf("--cloud-provider %q: give external, or leave it out", c.Provider))
	}
	return faults
}

// taints are those that this machine's Node registers with.
func (c *cloudConfig) taints() []corev1.Taint {
	if c.Provider == "" {
		return nil
	}
	return []corev1.Taint{{Key: cloud.TaintUninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
}
