package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/policy"
	"github.com/balsahq/balsa/overlay/routes"
)

// Values of --network-plugin.
const (
	pluginBalsa = "balsa"
	pluginCNI   = "cni"
)

// Values of --overlay-encryption.
const (
	encryptionNone      = "none"
	encryptionWireGuard = string(routes.WireGuard)
)

// prefixes reads one prefix, or two of different families with a comma between them.
func prefixes(text string) ([]netip.Prefix, error) {
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

// overlapping finds two prefixes that have addresses in common.
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

// networkFaults are those of the flags about the network.
func (c *config) networkFaults() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !slices.Contains(routes.Modes, routes.Mode(c.OverlayMode)) {
		fault("--overlay-mode %q: give one of %v", c.OverlayMode, routes.Modes)
	}
	switch c.Encryption {
	case encryptionNone:
	case encryptionWireGuard:
		if c.OverlayMode != string(routes.Auto) {
			fault("--overlay-encryption %s sends all packets in WireGuard's: leave out --overlay-mode %s", c.Encryption, c.OverlayMode)
		}
		if c.NetworkPlugin == pluginCNI {
			fault("--overlay-encryption %s: with --network-plugin %s another program carries the packets; have it encrypt them", c.Encryption, pluginCNI)
		}
	default:
		fault("--overlay-encryption %q: give %s or %s", c.Encryption, encryptionNone, encryptionWireGuard)
	}
	if c.NetworkPlugin != pluginBalsa && c.NetworkPlugin != pluginCNI {
		fault("--network-plugin %q: give %s or %s", c.NetworkPlugin, pluginBalsa, pluginCNI)
	}
	services, err := prefixes(c.ServiceCIDR)
	if err != nil {
		fault("--service-cidr %q: give a prefix such as 10.96.0.0/16, or one of each family, such as 10.96.0.0/16,fd00:96::/108", c.ServiceCIDR)
	}
	pods, err := prefixes(c.ClusterCIDR)
	if err != nil {
		fault("--cluster-cidr %q: give a prefix such as 10.244.0.0/16, or one of each family, such as 10.244.0.0/16,fd00:244::/48", c.ClusterCIDR)
	}
	if x, y, found := overlapping(services, pods); found {
		fault("--service-cidr %s and --cluster-cidr %s overlap: choose two prefixes that do not", x, y)
	}
	if len(services) == 2 && len(pods) == 1 && c.NetworkPlugin != pluginCNI {
		fault("--service-cidr %s has both families, and --cluster-cidr %s one: give pods both, or Services one", c.ServiceCIDR, c.ClusterCIDR)
	}
	inside := func(dns netip.Addr) bool {
		return slices.ContainsFunc(services, func(p netip.Prefix) bool { return p.Contains(dns) })
	}
	if dns, err := netip.ParseAddr(c.ClusterDNS); err != nil || len(services) > 0 && !inside(dns) {
		fault("--cluster-dns %q: give an address inside the service CIDR %s", c.ClusterDNS, c.ServiceCIDR)
	}
	ips, err := parseNodeIPs(c.NodeIP)
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

// apiAddresses are the addresses by which this process knows the API: those of its certificate and those it joins at, which
// may be a virtual address of all servers.
func (c *config) apiAddresses() (list []netip.Addr) {
	for _, text := range slices.Concat(c.TLSSANs, c.Join) {
		if host, _, err := net.SplitHostPort(text); err == nil {
			text = host
		}
		if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
			list = append(list, a.Unmap())
		}
	}
	return list
}

// networkState tells the node agent whether pods can be attached.
type networkState struct{ ready <-chan struct{} }

// Ready implements node.Network.
func (n *networkState) Ready() error {
	select {
	case <-n.ready:
		return nil
	default:
		return errors.New("the pod network is being set up")
	}
}

// overlayConfig is the network of this node without its sources of objects.
func overlayConfig(cfg *config, log *slog.Logger) (overlay.Config, error) {
	services, err := prefixes(cfg.ServiceCIDR)
	if err != nil {
		return overlay.Config{}, err
	}
	pods, err := prefixes(cfg.ClusterCIDR)
	if err != nil {
		return overlay.Config{}, err
	}
	dns, err := netip.ParseAddr(cfg.ClusterDNS)
	if err != nil {
		return overlay.Config{}, err
	}
	mode := routes.Mode(cfg.OverlayMode)
	if cfg.Encryption == encryptionWireGuard {
		mode = routes.WireGuard
	}
	return overlay.Config{
		NodeName: cfg.NodeName, PodCIDRs: pods, ServiceCIDRs: services, ForeignPods: cfg.NetworkPlugin == pluginCNI, Reserved: cfg.apiAddresses(),
		DNS: []netip.Addr{dns}, Domain: cfg.ClusterDomain, CNIConfDir: cfg.cniConfDir(),
		StateDir: filepath.Join(cfg.agentDir(), "network"), Logger: log,
		Mode: mode, WireGuardPort: cfg.WireGuardPort, VXLANPort: cfg.VXLANPort, Offload: cfg.VXLANOffload, UDPPort: cfg.UDPPort,
	}, nil
}

// cleanNetwork removes from the kernel what the network ever made.
func cleanNetwork(cfg *config) error {
	settings, err := overlayConfig(cfg, slog.Default())
	if err != nil {
		return err
	}
	return errors.Join(policy.Cleanup(""), overlay.Cleanup(settings))
}
