package config

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/loadbalancer"
)

// LoadBalancer is where Services of type LoadBalancer get their addresses. Networks that do not parse are left to
// Validate.
func (c *Server) LoadBalancer() loadbalancer.Config {
	taken := map[string]netip.Prefix{}
	for name, text := range map[string]string{"network of pods": c.ClusterCIDR, "network of Services": c.ServiceCIDR} {
		for i, part := range strings.Split(text, ",") {
			if p, err := netip.ParsePrefix(strings.TrimSpace(part)); err == nil {
				taken[strings.Repeat("second ", i)+name] = p
			}
		}
	}
	return loadbalancer.Config{Pools: c.LoadBalancerPool, Taken: taken}
}

// Taints are those that this machine's Node registers with.
func (c *Node) Taints() []corev1.Taint {
	if c.CloudProvider == "" {
		return nil
	}
	return []corev1.Taint{{Key: cloud.TaintUninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
}
