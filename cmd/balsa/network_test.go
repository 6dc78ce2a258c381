package main

import (
	"strings"
	"testing"
)

func TestNetworkFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *config)
		fault  string // "": none
	}{
		"as they are":            {func(*config) {}, ""},
		"both families":          {func(c *config) { c.ClusterCIDR = "10.244.0.0/16,fd00:244::/48" }, ""},
		"IPv6 first":             {func(c *config) { c.ClusterCIDR = "fd00:244::/48, 10.244.0.0/16" }, ""},
		"another plugin":         {func(c *config) { c.NetworkPlugin = "cni" }, ""},
		"by UDP":                 {func(c *config) { c.OverlayMode = "udp" }, ""},
		"one family twice":       {func(c *config) { c.ClusterCIDR = "10.244.0.0/16,10.245.0.0/16" }, "--cluster-cidr"},
		"host bits":              {func(c *config) { c.ClusterCIDR = "10.244.0.1/16" }, "--cluster-cidr"},
		"no prefix":              {func(c *config) { c.ServiceCIDR = "10.96.0.0" }, "--service-cidr"},
		"pods among Services":    {func(c *config) { c.ClusterCIDR = "10.96.128.0/17" }, "--service-cidr 10.96.0.0/16 and --cluster-cidr 10.96.128.0/17 overlap"},
		"Services among pods":    {func(c *config) { c.ClusterCIDR = "10.0.0.0/8" }, "overlap"},
		"overlap of the second":  {func(c *config) { c.ClusterCIDR = "fd00:244::/48,10.96.0.0/12" }, "overlap"},
		"node among pods":        {func(c *config) { c.NodeIP = "10.244.3.4" }, "--node-ip 10.244.3.4 is inside 10.244.0.0/16"},
		"unknown plugin":         {func(c *config) { c.NetworkPlugin = "calico" }, "--network-plugin"},
		"unknown mode":           {func(c *config) { c.OverlayMode = "ipip" }, "--overlay-mode"},
		"DNS outside":            {func(c *config) { c.ClusterDNS = "10.97.0.10" }, "--cluster-dns"},
		"no port":                {func(c *config) { c.UDPPort = 0 }, "--udp-port"},
		"port that is too large": {func(c *config) { c.VXLANPort = 70000 }, "--vxlan-port"},
	} {
		t.Run(name, func(t *testing.T) {
			c := defaultConfig()
			c.NodeName = "n1"
			tt.change(&c)
			err := c.Validate()
			if tt.fault == "" && err != nil || tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)) {
				t.Errorf("%v, want %q", err, tt.fault)
			}
		})
	}
}
