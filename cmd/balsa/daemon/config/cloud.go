package config

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/loadbalancer"
)

// LoadBalancer returns the pools from which Services of type LoadBalancer get their addresses, and the cluster's networks,
// which no pool may overlap. It skips networks that do not parse: Validate reports them.
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

// Taints returns the taints with which this machine's Node registers: the one that keeps pods away until a cloud controller
// has initialized the Node, or none.
func (c *Node) Taints() []corev1.Taint {
	if c.CloudProvider == "" {
		return nil
	}
	return []corev1.Taint{{Key: cloud.TaintUninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
}
