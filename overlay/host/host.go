package host

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config says which links and addresses the host should have.
type Config struct {
	Namespace Namespace
	// Bridge is the link that pods are attached to; "" where another CNI plugin attaches them. Gateways are its addresses
	// (the first of each pod network), MTU its MTU; 0 is the MTU of the link with the default route.
	Bridge   string
	Gateways []netip.Prefix
	MTU      int
	// DNSLink carries the DNS addresses and the routes to the service networks.
	DNSLink  string
	DNS      []netip.Addr
	Services []netip.Prefix
	// Tunnel is the name of the link to nodes that are on no subnet of this host; Relay is the name of the TUN link that
	// replaces it where this process carries the packets.
	Tunnel, Relay string
	// Offload leaves checksums of packets in the tunnel to the link below it.
	Offload bool
	// StateDir is where former values of kernel settings are kept.
	StateDir string
	Logger   *slog.Logger
}

// Host applies a Config.
type Host struct {
	cfg  Config
	link *netlink.Handle
	// ports are the links seen on the bridge, by index. A bridge that another program deleted gets them back, and when one goes,
	// its neighbour entries are deleted. Nil before the first Apply.
	ports map[int]struct{}
	// tunnel is the index of the tunnel's link; 0: there is none.
	tunnel int
}

// Open connects to the kernel's netlink; nothing is changed before Apply.
func Open(cfg Config) (*Host, error) {
	h := &Host{cfg: cfg}
	err := cfg.Namespace.Do(func() (err error) {
		h.link, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}

// Close disconnects; links, addresses and routes stay.
func (h *Host) Close() { h.link.Close() }

// Configure replaces the pods' gateways. Namespace, link names and StateDir stay the same.
func (h *Host) Configure(gateways []netip.Prefix) { h.cfg.Gateways = gateways }

// Serve replaces the service networks.
func (h *Host) Serve(services []netip.Prefix) { h.cfg.Services = services }

// Apply adds what is missing and corrects what differs.
func (h *Host) Apply() error {
	return h.cfg.Namespace.Do(func() error {
		if h.cfg.Bridge != "" {
			bridge, err := h.applyBridge()
			if err != nil {
				return err
			}
			if err := h.applyPorts(bridge); err != nil {
				return err
			}
		}
		if h.cfg.has6() {
			if err := h.applySettings(h.uplinkSettings()); err != nil {
				return err
			}
		}
		if err := h.applySettings(h.cfg.settings()); err != nil {
			return err
		}
		dns, err := h.applyDNSLink()
		if err != nil {
			return err
		}
		return h.applyRoutes(dns)
	})
}

func (h *Host) applyBridge() (netlink.Link, error) {
	mtu := h.cfg.MTU
	if mtu == 0 {
		mtu = h.defaultMTU()
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = h.cfg.Bridge, mtu, hardwareAddress(h.cfg.Gateways)
	bridge, err := h.ensureLink(&netlink.Bridge{LinkAttrs: attrs})
	if err != nil {
		return nil, err
	}
	if bridge.Attrs().MTU != mtu {
		if err := h.link.LinkSetMTU(bridge, mtu); err != nil {
			return nil, fmt.Errorf("mtu of %s: %w", h.cfg.Bridge, err)
		}
	}
	if h.cfg.has6() {
		if err := h.applySettings(settings6(h.cfg.Bridge)); err != nil {
			return nil, err
		}
	}
	return bridge, h.applyAddresses(bridge, h.cfg.Gateways)
}

// ensureLink returns the link of that name, which it makes and sets up if needed. A link of another kind with that name is an
// error, because it belongs to another program.
func (h *Host) ensureLink(want netlink.Link) (netlink.Link, error) {
	name := want.Attrs().Name
	have, err := h.link.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := h.link.LinkAdd(want); err != nil {
			return nil, fmt.Errorf("make link %s: %w", name, err)
		}
		h.cfg.Logger.Info("link made", "name", name, "kind", want.Type())
		have, err = h.link.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	if have.Type() != want.Type() {
		return nil, fmt.Errorf("link %s is a %s where a %s is wanted", name, have.Type(), want.Type())
	}
	if have.Attrs().Flags&net.FlagUp == 0 {
		if err := h.link.LinkSetUp(have); err != nil {
			return nil, fmt.Errorf("link %s up: %w", name, err)
		}
	}
	return have, nil
}

// applyAddresses gives a link exactly these addresses, beside link-local ones.
func (h *Host) applyAddresses(link netlink.Link, want []netip.Prefix) error {
	have, err := dump(func() ([]netlink.Addr, error) { return h.link.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	missing := make(map[netip.Prefix]struct{}, len(want))
	for _, p := range want {
		missing[p] = struct{}{}
	}
	for i := range have {
		p := prefixOf(have[i].IPNet)
		if _, ok := missing[p]; ok {
			delete(missing, p)
			continue
		}
		if !p.Addr().IsLinkLocalUnicast() {
			if err := h.link.AddrDel(link, &have[i]); err != nil {
				return fmt.Errorf("remove address %s from %s: %w", p, link.Attrs().Name, err)
			}
		}
	}
	for _, p := range want {
		if _, ok := missing[p]; !ok {
			continue
		}
		a := &netlink.Addr{IPNet: netOf(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.link.AddrAdd(link, a); err != nil {
			return fmt.Errorf("address %s on %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

// applyDNSLink makes a bridge without ports instead of a dummy link: all kernels that run pods have bridges, not all have dummy
// links.
func (h *Host) applyDNSLink() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = h.cfg.DNSLink
	link, err := h.ensureLink(&netlink.Bridge{LinkAttrs: attrs})
	if err != nil {
		return nil, err
	}
	if h.cfg.has6() {
		if err := h.applySettings(settings6(h.cfg.DNSLink)); err != nil {
			return nil, err
		}
	}
	var addresses []netip.Prefix
	for _, a := range h.cfg.DNS {
		addresses = append(addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	return link, h.applyAddresses(link, addresses)
}

// applyRoutes makes routes to the service networks, so that the node itself can send to a service address without a default
// route; nftables rewrite the destination before packets leave. The source is the gateway's address, to which answers come back.
func (h *Host) applyRoutes(link netlink.Link) error {
	for _, p := range h.cfg.Services {
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netOf(p), Scope: netlink.SCOPE_LINK}
		for _, g := range h.cfg.Gateways {
			if g.Addr().Is4() == p.Addr().Is4() {
				r.Src = g.Addr().AsSlice()
			}
		}
		if err := h.applyRoute(r); err != nil {
			return fmt.Errorf("route to %s: %w", p, err)
		}
	}
	return h.removeRoutes(link)
}

// removeRoutes removes the routes to networks that are no longer networks of Services. The kernel's own routes on the link stay.
func (h *Host) removeRoutes(link netlink.Link) error {
	have, err := dump(func() ([]netlink.Route, error) { return h.link.RouteList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for i := range have {
		r := &have[i]
		if r.Protocol != unix.RTPROT_BOOT || r.Dst == nil || slices.Contains(h.cfg.Services, prefixOf(r.Dst)) {
			continue
		}
		if err := h.link.RouteDel(r); err != nil {
			return fmt.Errorf("remove route to %s: %w", r.Dst, err)
		}
	}
	return nil
}

func (h *Host) applyRoute(want *netlink.Route) error {
	family := netlink.FAMILY_V4
	if want.Dst.IP.To4() == nil {
		family = netlink.FAMILY_V6
		want.Scope = netlink.SCOPE_UNIVERSE
	}
	have, err := dump(func() ([]netlink.Route, error) {
		return h.link.RouteListFiltered(family, &netlink.Route{Dst: want.Dst}, netlink.RT_FILTER_DST)
	})
	if err != nil {
		return err
	}
	for i := range have {
		if have[i].LinkIndex == want.LinkIndex && (want.Src == nil || have[i].Src.Equal(want.Src)) {
			return nil
		}
	}
	return h.link.RouteReplace(want)
}

// defaultMTU is the MTU of the link with the default route, or that of Ethernet.
func (h *Host) defaultMTU() int {
	const ethernet = 1500
	routes, err := h.mainTables()
	if err != nil {
		return ethernet
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if l, err := h.link.LinkByIndex(r.LinkIndex); err == nil && l.Attrs().MTU > 0 {
			return l.Attrs().MTU
		}
	}
	return ethernet
}

// Remove deletes by name the links and routes that Apply makes, and restores kernel settings. A link or route that is gone
// already is no error.
func Remove(cfg Config) error {
	return cfg.Namespace.Do(func() error {
		var errs []error
		for _, name := range []string{cfg.Bridge, cfg.DNSLink, cfg.Tunnel, cfg.Relay} {
			if name == "" {
				continue
			}
			link, err := netlink.LinkByName(name)
			if errors.As(err, &netlink.LinkNotFoundError{}) {
				continue
			}
			if err == nil {
				err = errors.Join(removePorts(link), removeLink(link))
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("remove link %s: %w", name, err))
			}
		}
		return errors.Join(append(errs, removeNodeRoutes(), cfg.restoreSettings())...)
	})
}

// removePorts deletes the veth pairs that attach pods to a bridge.
func removePorts(bridge netlink.Link) error {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index && l.Type() == "veth" {
			errs = append(errs, removeLink(l))
		}
	}
	return errors.Join(errs...)
}

// removeLink deletes a link; a link that is gone meanwhile, such as a pod's link with its namespace, is no error.
func removeLink(link netlink.Link) error {
	if err := netlink.LinkDel(link); !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// hardwareAddress derives the bridge's address from its IP address, so that it never changes with its ports.
func hardwareAddress(gateways []netip.Prefix) net.HardwareAddr {
	for _, g := range gateways {
		if g.Addr().Is4() {
			a := g.Addr().As4()
			return net.HardwareAddr{0x0a, 0x58, a[0], a[1], a[2], a[3]}
		}
	}
	if len(gateways) == 0 {
		return nil
	}
	a := gateways[0].Masked().Addr().As16()
	return net.HardwareAddr{0x0a, 0x58, a[4], a[5], a[6], a[7]}
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}
