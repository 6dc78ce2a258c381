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
		"as they are":   {func(*config) {}, ""},
		"both families": {func(c *config) { c.ClusterCIDR = "10.244.0.0/16,fd00:244::/48" }, ""},
		"IPv6 first":    {func(c *config) { c.ClusterCIDR = "fd00:244::/48, 10.244.0.0/16" }, ""},
		"Services of both": {func(c *config) {
			c.ClusterCIDR, c.ServiceCIDR = "10.244.0.0/16,fd00:244::/48", "10.96.0.0/16,fd00:96::/108"
		}, ""},
		"Services of both alone": {func(c *config) { c.ServiceCIDR = "10.96.0.0/16,fd00:96::/108" }, "--cluster-cidr 10.244.0.0/16 one: give pods both"},
		"Services' family twice": {func(c *config) { c.ServiceCIDR = "10.96.0.0/16,10.97.0.0/16" }, "--service-cidr"},
		"node of both":           {func(c *config) { c.NodeIP = "10.0.0.1, 2001:db8::1" }, ""},
		"node's family twice":    {func(c *config) { c.NodeIP = "10.0.0.1,10.0.0.2" }, "--node-ip \"10.0.0.1,10.0.0.2\": give one address, or one of each family"},
		"node by name":           {func(c *config) { c.NodeIP = "n1" }, "--node-ip \"n1\": give an IP address"},
		"node's second in pods": {func(c *config) {
			c.ClusterCIDR, c.NodeIP = "10.244.0.0/16,fd00:244::/48", "10.0.0.1,fd00:244::1"
		}, "--node-ip fd00:244::1 is inside"},
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
		"no encryption":          {func(c *config) { c.Encryption = "rot13" }, "--overlay-encryption"},
		"encrypted VXLAN":        {func(c *config) { c.Encryption, c.OverlayMode = "wireguard", "vxlan" }, "--overlay-mode"},
		"others' encryption":     {func(c *config) { c.Encryption, c.NetworkPlugin = "wireguard", "cni" }, "--network-plugin"},
		"no WireGuard port":      {func(c *config) { c.WireGuardPort = 0 }, "--wireguard-port"},
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

func TestNodesAddressesAreInTheOrderOfThePodsFamilies(t *testing.T) {
	for _, tt := range []struct{ given, pods, want string }{
		{"10.0.0.1", "10.244.0.0/16", "10.0.0.1"},
		{"10.0.0.1", "10.244.0.0/16,fd00:244::/48", "10.0.0.1"}, // who gives one means one
		{"10.0.0.1,2001:db8::1", "10.244.0.0/16,fd00:244::/48", "10.0.0.1 2001:db8::1"},
		{"10.0.0.1,2001:db8::1", "fd00:244::/48,10.244.0.0/16", "2001:db8::1 10.0.0.1"},
		{"2001:db8::1,10.0.0.1", "10.244.0.0/16", "2001:db8::1 10.0.0.1"},
	} {
		c := defaultConfig()
		c.NodeIP, c.ClusterCIDR = tt.given, tt.pods
		first, err := nodeAddress(&c)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ip := range c.nodeIPs(first) {
			got = append(got, ip.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s of pods in %s: %v, want %s", tt.given, tt.pods, got, tt.want)
		}
	}
}
