package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/balsahq/balsa/overlay/routes"
)

// Values of --network-plugin.
const (
	PluginBalsa = "balsa"
	PluginCNI   = "cni"
)

// Values of --overlay-encryption.
const (
	EncryptionNone      = "none"
	EncryptionWireGuard = string(routes.WireGuard)
)

// Prefixes parses one prefix, or two of different families with a comma between them.
func Prefixes(text string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%s has bits set beyond its length; did you mean %s?", p, p.Masked())
		}
		list = append(list, p)
	}
	if len(list) > 2 || len(list) == 2 && list[0].Addr().Is4() == list[1].Addr().Is4() {
		return nil, fmt.Errorf("%s: give one prefix, or one of each family", text)
	}
	return list, nil
}

// overlapping returns a prefix of a and one of b that have addresses in common, if there are any.
func overlapping(a, b []netip.Prefix) (x, y netip.Prefix, found bool) {
	for _, x := range a {
		for _, y := range b {
			if x.Overlaps(y) {
				return x, y, true
			}
		}
	}
	return x, y, false
}

// networkFaults returns the faults of the settings about the network.
func (c *Node) networkFaults() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !slices.Contains(routes.Modes, routes.Mode(c.OverlayMode)) {
		fault("--overlay-mode %q: give one of %v", c.OverlayMode, routes.Modes)
	}
	switch c.Encryption {
	case EncryptionNone:
	case EncryptionWireGuard:
		if c.OverlayMode != string(routes.Auto) {
			fault("--overlay-encryption %s sends all packets in WireGuard's: leave out --overlay-mode %s", c.Encryption, c.OverlayMode)
		}
		if c.NetworkPlugin == PluginCNI {
			fault("--overlay-encryption %s: with --network-plugin %s another program carries the packets; have it encrypt them", c.Encryption, PluginCNI)
		}
	default:
		fault("--overlay-encryption %q: give %s or %s", c.Encryption, EncryptionNone, EncryptionWireGuard)
	}
	if c.NetworkPlugin != PluginBalsa && c.NetworkPlugin != PluginCNI {
		fault("--network-plugin %q: give %s or %s", c.NetworkPlugin, PluginBalsa, PluginCNI)
	}
	services, err := Prefixes(c.ServiceCIDR)
	if err != nil {
		fault("--service-cidr %q: give a prefix such as 10.96.0.0/16, or one of each family, such as 10.96.0.0/16,fd00:96::/108", c.ServiceCIDR)
	}
	pods, err := Prefixes(c.ClusterCIDR)
	if err != nil {
		fault("--cluster-cidr %q: give a prefix such as 10.244.0.0/16, or one of each family, such as 10.244.0.0/16,fd00:244::/48", c.ClusterCIDR)
	}
	if x, y, found := overlapping(services, pods); found {
		fault("--service-cidr %s and --cluster-cidr %s overlap: choose two prefixes that do not", x, y)
	}
	if len(services) == 2 && len(pods) == 1 && c.NetworkPlugin != PluginCNI {
		fault("--service-cidr %s has both families, and --cluster-cidr %s one: give pods both, or Services one", c.ServiceCIDR, c.ClusterCIDR)
	}
	inside := func(dns netip.Addr) bool {
		return slices.ContainsFunc(services, func(p netip.Prefix) bool { return p.Contains(dns) })
	}
	if dns, err := netip.ParseAddr(c.ClusterDNS); err != nil || len(services) > 0 && !inside(dns) {
		fault("--cluster-dns %q: give an address inside the service CIDR %s", c.ClusterDNS, c.ServiceCIDR)
	}
	ips, err := ParseNodeIPs(c.NodeIP)
	if err != nil {
		fault("--node-ip %q: %w", c.NodeIP, err)
	}
	for _, ip := range ips {
		for _, p := range slices.Concat(pods, services) {
			if p.Contains(ip) {
				fault("--node-ip %s is inside %s, whose addresses are pods' or Services': choose other prefixes for those, or another address", ip, p)
			}
		}
	}
	return faults
}

// APIAddresses returns the addresses by which this server knows the API: --tls-san and --join, either of which may be a
// virtual address of all servers.
func (c *Server) APIAddresses() []netip.Addr { return addressesIn(slices.Concat(c.TLSSANs, c.Join)) }

// APIAddresses returns the addresses of --join, which may be a virtual address of all servers.
func (c *Agent) APIAddresses() []netip.Addr { return addressesIn(c.Join) }

// addressesIn returns the IP addresses among hosts, each a name or an address, with a port or without.
func addressesIn(hosts []string) (list []netip.Addr) {
	for _, text := range hosts {
		if host, _, err := net.SplitHostPort(text); err == nil {
			text = host
		}
		if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
			list = append(list, a.Unmap())
		}
	}
	return list
}

// ClusterNetworks returns the networks of pods and of Services.
func (c *Node) ClusterNetworks() ([]netip.Prefix, error) {
	pods, err := Prefixes(c.ClusterCIDR)
	if err != nil {
		return nil, err
	}
	services, err := Prefixes(c.ServiceCIDR)
	return slices.Concat(pods, services), err
}

// ParseNodeIPs parses --node-ip: an address, or one of each family with a comma between. It returns nil for an empty text.
func ParseNodeIPs(text string) ([]netip.Addr, error) {
	if text == "" {
		return nil, nil
	}
	var list []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		ip, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, errors.New("give an IP address, or one of each family, such as 10.0.0.1,2001:db8::1")
		}
		list = append(list, ip.Unmap())
	}
	if len(list) > 2 || len(list) == 2 && list[0].Is4() == list[1].Is4() {
		return nil, errors.New("give one address, or one of each family")
	}
	return list, nil
}
