package overlay

import (
	"context"
	"crypto/ecdh"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/routes"
)

// Defaults of Config.
const (
	DefaultBridge  = "balsa0"
	DefaultDNSLink = "balsa-dns"
	DefaultTunnel  = "balsa-vxlan"
	DefaultRelay   = "balsa-udp"
	DefaultDomain  = "cluster.local"
	// DefaultVXLANPort is Linux's default for VXLAN, which most overlays use; DefaultVNI is the VXLAN network identifier.
	DefaultVXLANPort = 8472
	DefaultVNI       = 98
	// DefaultUDPPort is the port of mode routes.UDP.
	DefaultUDPPort = 8285
	// DefaultWireGuardPort is the port of mode routes.WireGuard, WireGuard's usual one.
	DefaultWireGuardPort = 51820
	// DefaultMark is the bit of the packet mark that asks for masquerading.
	DefaultMark = 0x4000
	// ConflistName is the CNI configuration written into Config.CNIConfDir.
	ConflistName = "10-balsa.conflist"
	networkName  = "balsa"
)

// Config configures a Network.
type Config struct {
	// NodeName is this node's Node object; its spec.podCIDRs say which addresses its pods get.
	NodeName string
	// Informers, as NewInformers makes them, give Services, ServiceCIDRs, EndpointSlices and Nodes. Run starts those it needs, and
	// leaves them running.
	Informers informers.SharedInformerFactory
	// Pods gives at least the pods of this node, for their host ports; nil: no host ports. The caller runs it.
	Pods cache.SharedIndexInformer
	// PodCIDRs and ServiceCIDRs are the cluster's networks, at most one of each in a family. ServiceCIDR objects add to the latter.
	PodCIDRs, ServiceCIDRs []netip.Prefix
	// ForeignPods: another CNI plugin attaches the pods and routes their packets between nodes. The network then writes no
	// CNI configuration and makes no bridge and no routes to other nodes; it only handles Services, host ports and DNS.
	ForeignPods bool
	// Reserved are further addresses that a Service cannot claim in its fields; addresses of nodes, pods, Services and API
	// servers are always reserved.
	Reserved []netip.Addr
	// DNS are the addresses of the DNS server, within ServiceCIDRs; empty: no DNS server.
	DNS []netip.Addr
	// Domain is the cluster's domain; "" is cluster.local.
	Domain string
	// ResolvConf names the resolvers for other names; "" is /etc/resolv.conf.
	ResolvConf string
	// CNIConfDir is where container runtimes look for CNI configuration.
	CNIConfDir string
	// Bandwidth adds the bandwidth plugin, for pods whose annotations limit their bandwidth. It starts one more program for
	// every pod.
	Bandwidth bool
	// StateDir keeps what must survive a restart: allocated pod addresses, former kernel settings.
	StateDir string
	// Mode is the kind of routes to other nodes' pods; "" is routes.Auto. VXLANPort, VNI and UDPPort belong to the tunnels;
	// 0 is the default. All nodes of the cluster should have the same.
	Mode                    routes.Mode
	VXLANPort, VNI, UDPPort int
	// WireGuardPort is the UDP port in mode routes.WireGuard, 0 is the default; Key is this node's private key. Publish sets
	// an annotation of this node's Node, "" removes it; the Network calls it again after a failure. It may be nil in other
	// modes.
	WireGuardPort int
	Key           *ecdh.PrivateKey
	Publish       func(ctx context.Context, annotation, value string) error
	// Offload leaves the checksums of packets in the VXLAN tunnel, and their segmentation, to the link below it: that gives
	// several times the throughput if kernel and network card compute them correctly, and loses packets if not.
	Offload bool
	// Bridge, DNSLink, Tunnel and Relay are the names of the links; "" are the defaults. MTU is the MTU of pods; 0: that of the
	// link with the node's address, less the tunnel's headers when there is one.
	Bridge, DNSLink, Tunnel, Relay string
	MTU                            int
	// Mark is a bit of the packet mark that no other program uses; 0 is DefaultMark.
	Mark uint32
	// NetNS is the path of the network namespace to work in; "" is the namespace of the process.
	NetNS  string
	Logger *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("overlay: "+format, args...))
		}
	}
	must(c.NodeName != "", "NodeName is missing")
	must(c.Informers != nil, "Informers are missing")
	must(len(c.PodCIDRs) > 0, "PodCIDRs are missing")
	must(len(c.ServiceCIDRs) > 0, "ServiceCIDRs are missing")
	must(c.CNIConfDir != "", "CNIConfDir is missing")
	must(c.StateDir != "", "StateDir is missing")
	must(len(c.Bridge) < 16, "Bridge %q is longer than a link's name may be", c.Bridge)
	must(len(c.DNSLink) < 16, "DNSLink %q is longer than a link's name may be", c.DNSLink)
	must(len(c.Tunnel) < 16, "Tunnel %q is longer than a link's name may be", c.Tunnel)
	must(c.Mode == "" || c.Mode == routes.WireGuard || slices.Contains(routes.Modes, c.Mode), "Mode %q is none of %v", c.Mode, routes.Modes)
	must(c.VXLANPort >= 0 && c.VXLANPort <= 65535, "VXLANPort %d is no UDP port", c.VXLANPort)
	must(len(c.Relay) < 16, "Relay %q is longer than a link's name may be", c.Relay)
	must(c.UDPPort >= 0 && c.UDPPort <= 65535, "UDPPort %d is no UDP port", c.UDPPort)
	must(c.WireGuardPort >= 0 && c.WireGuardPort <= 65535, "WireGuardPort %d is no UDP port", c.WireGuardPort)
	must(c.Mode != routes.WireGuard || c.Key != nil && c.Publish != nil, "mode %s needs Key and Publish", routes.WireGuard)
	must(c.VNI >= 0 && c.VNI < 1<<24, "VNI %d has more than 24 bits", c.VNI)
	must(c.Mark&(c.Mark-1) == 0, "Mark %#x is more than one bit", c.Mark)
	for _, list := range [][]netip.Prefix{c.PodCIDRs, c.ServiceCIDRs} {
		for i, p := range list {
			must(p.IsValid() && !p.Addr().Is4In6(), "network %s is not valid", p)
			must(p == p.Masked(), "network %s has bits set beyond its length; did you mean %s?", p, p.Masked())
			must(i == 0 || p.Addr().Is4() != list[0].Addr().Is4() && i < 2, "networks %v: give one of each family at most", list)
		}
	}
	for _, pods := range c.PodCIDRs {
		for _, services := range c.ServiceCIDRs {
			must(!pods.Overlaps(services), "pod network %s and service network %s overlap: choose two that do not", pods, services)
		}
	}
	for _, a := range c.DNS {
		inside := false
		for _, p := range c.ServiceCIDRs {
			inside = inside || p.Contains(a)
		}
		must(inside, "DNS address %s is outside the service networks", a)
	}
	return errors.Join(errs...)
}

func (c *Config) fill() {
	text := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	text(&c.Bridge, DefaultBridge)
	text(&c.DNSLink, DefaultDNSLink)
	text(&c.Tunnel, DefaultTunnel)
	text(&c.Relay, DefaultRelay)
	text((*string)(&c.Mode), string(routes.Auto))
	text(&c.Domain, DefaultDomain)
	text(&c.ResolvConf, "/etc/resolv.conf")
	if c.VXLANPort == 0 {
		c.VXLANPort = DefaultVXLANPort
	}
	if c.UDPPort == 0 {
		c.UDPPort = DefaultUDPPort
	}
	if c.WireGuardPort == 0 {
		c.WireGuardPort = DefaultWireGuardPort
	}
	if c.VNI == 0 {
		c.VNI = DefaultVNI
	}
	if c.Mark == 0 {
		c.Mark = DefaultMark
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func (c *Config) ipamDir() string { return filepath.Join(c.StateDir, "ipam") }

func (c *Config) hostConfig(ns host.Namespace) host.Config {
	cfg := host.Config{
		Namespace: ns, Bridge: c.Bridge, MTU: c.MTU, DNSLink: c.DNSLink, DNS: c.DNS, Services: c.ServiceCIDRs,
		Tunnel: c.Tunnel, Relay: c.Relay, Offload: c.Offload, StateDir: c.StateDir, Logger: c.Logger,
	}
	if c.ForeignPods {
		cfg.Bridge = ""
	}
	return cfg
}

func (c *Config) meshConfig() routes.Config {
	cfg := routes.Config{Self: c.NodeName, Mode: c.Mode, Networks: c.PodCIDRs, VNI: c.VNI, Port: c.VXLANPort}
	switch c.Mode {
	case routes.UDP:
		cfg.Port = c.UDPPort
	case routes.WireGuard:
		cfg.Port = c.WireGuardPort
	}
	return cfg
}

// ofFamily filters networks by family.
func ofFamily(list []netip.Prefix, v4 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		if p.Addr().Is4() == v4 {
			out = append(out, p)
		}
	}
	return out
}
