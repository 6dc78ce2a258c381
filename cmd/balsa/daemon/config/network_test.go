package config

import (
	"strings"
	"testing"
)

func TestNetworkFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *Node)
		fault  string // "": none
	}{
		"as they are":   {func(*Node) {}, ""},
		"both families": {func(c *Node) { c.ClusterCIDR = "10.244.0.0/16,fd00:244::/48" }, ""},
		"IPv6 first":    {func(c *Node) { c.ClusterCIDR = "fd00:244::/48, 10.244.0.0/16" }, ""},
		"Services of both": {func(c *Node) {
			c.ClusterCIDR, c.ServiceCIDR = "10.244.0.0/16,fd00:244::/48", "10.96.0.0/16,fd00:96::/108"
		}, ""},
		"Services of both alone": {func(c *Node) { c.ServiceCIDR = "10.96.0.0/16,fd00:96::/108" }, "--cluster-cidr 10.244.0.0/16 one: give pods both"},
		"Services' family twice": {func(c *Node) { c.ServiceCIDR = "10.96.0.0/16,10.97.0.0/16" }, "--service-cidr"},
		"node of both":           {func(c *Node) { c.NodeIP = "10.0.0.1, 2001:db8::1" }, ""},
		"node's family twice":    {func(c *Node) { c.NodeIP = "10.0.0.1,10.0.0.2" }, "--node-ip \"10.0.0.1,10.0.0.2\": give one address, or one of each family"},
		"node by name":           {func(c *Node) { c.NodeIP = "n1" }, "--node-ip \"n1\": give an IP address"},
		"node's second in pods": {func(c *Node) {
			c.ClusterCIDR, c.NodeIP = "10.244.0.0/16,fd00:244::/48", "10.0.0.1,fd00:244::1"
		}, "--node-ip fd00:244::1 is inside"},
		"another plugin":         {func(c *Node) { c.NetworkPlugin = "cni" }, ""},
		"by UDP":                 {func(c *Node) { c.OverlayMode = "udp" }, ""},
		"one family twice":       {func(c *Node) { c.ClusterCIDR = "10.244.0.0/16,10.245.0.0/16" }, "--cluster-cidr"},
		"host bits":              {func(c *Node) { c.ClusterCIDR = "10.244.0.1/16" }, "--cluster-cidr"},
		"no prefix":              {func(c *Node) { c.ServiceCIDR = "10.96.0.0" }, "--service-cidr"},
		"pods among Services":    {func(c *Node) { c.ClusterCIDR = "10.96.128.0/17" }, "--service-cidr 10.96.0.0/16 and --cluster-cidr 10.96.128.0/17 overlap"},
		"Services among pods":    {func(c *Node) { c.ClusterCIDR = "10.0.0.0/8" }, "overlap"},
		"overlap of the second":  {func(c *Node) { c.ClusterCIDR = "fd00:244::/48,10.96.0.0/12" }, "overlap"},
		"node among pods":        {func(c *Node) { c.NodeIP = "10.244.3.4" }, "--node-ip 10.244.3.4 is inside 10.244.0.0/16"},
		"unknown plugin":         {func(c *Node) { c.NetworkPlugin = "calico" }, "--network-plugin"},
		"unknown mode":           {func(c *Node) { c.OverlayMode = "ipip" }, "--overlay-mode"},
		"DNS outside":            {func(c *Node) { c.ClusterDNS = "10.97.0.10" }, "--cluster-dns"},
		"no encryption":          {func(c *Node) { c.Encryption = "rot13" }, "--overlay-encryption"},
		"encrypted VXLAN":        {func(c *Node) { c.Encryption, c.OverlayMode = "wireguard", "vxlan" }, "--overlay-mode"},
		"others' encryption":     {func(c *Node) { c.Encryption, c.NetworkPlugin = "wireguard", "cni" }, "--network-plugin"},
		"no WireGuard port":      {func(c *Node) { c.WireGuardPort = 0 }, "--wireguard-port"},
		"no port":                {func(c *Node) { c.UDPPort = 0 }, "--udp-port"},
		"port that is too large": {func(c *Node) { c.VXLANPort = 70000 }, "--vxlan-port"},
	} {
		t.Run(name, func(t *testing.T) {
			c := DefaultNode()
			c.NodeName = "n1"
			tt.change(&c)
			err := c.Validate()
			if tt.fault == "" && err != nil || tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)) {
				t.Errorf("%v, want %q", err, tt.fault)
			}
		})
	}
}
