package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routes"
)

// Tunnel returns the index of the tunnel's link after the last Connect; 0: there is none.
func (h *Host) Tunnel() int { return h.tunnel }

// applyTunnel makes the tunnel's link and its entries for the peers, or removes it. It returns the link's index, which is not 0
// once there is a link, even with an error.
func (h *Host) applyTunnel(want *routes.Tunnel) (index int, err error) {
	h.tunnel = 0
	kernels, relayed := want != nil && !want.Relayed, want != nil && want.Relayed
	var errs []error
	if !kernels {
		errs = append(errs, h.removeTunnel(h.cfg.Tunnel, "vxlan"))
	}
	if !relayed {
		errs = append(errs, h.removeTunnel(h.cfg.Relay, "tuntap"))
	}
	var link netlink.Link
	switch {
	case kernels:
		link, err = h.ensureTunnel(want)
	case relayed:
		link, err = h.ensureRelay(want)
	}
	if err != nil || link == nil {
		return 0, errors.Join(append(errs, err)...)
	}
	h.tunnel = link.Attrs().Index
	if kernels {
		errs = append(errs, h.applyTunnelLink(link, want), h.applyFDB(link, want.Peers))
	}
	errs = append(errs, h.applySettings(h.cfg.tunnelSettings(link.Attrs().Name, want.Source6.IsValid())))
	var addresses []netip.Prefix
	if a := want.Address; a.IsValid() {
		addresses = append(addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	errs = append(errs, h.applyAddresses(link, addresses))
	if kernels {
		errs = append(errs, h.applyNeighbours(link, want.Peers, unix.AF_INET))
		if want.Source6.IsValid() {
			errs = append(errs, h.applyNeighbours(link, want.Peers, unix.AF_INET6))
		}
	}
	return h.tunnel, errors.Join(errs...)
}

func (h *Host) removeTunnel(name, kind string) error {
	link, err := h.link.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil || link.Type() != kind { // a link of another program with that name stays, because the overlay needs no link now
		return err
	}
	h.cfg.Logger.Info("link removed", "name", name)
	return removeLink(link)
}

// ensureTunnel returns the tunnel's link; it makes it and sets it up if needed. A link for another port or address is replaced,
// because the kernel cannot change these.
func (h *Host) ensureTunnel(want *routes.Tunnel) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = h.cfg.Tunnel, want.MTU, want.MAC[:]
	link := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: want.VNI, Port: want.Port}
	if want.Local.IsValid() {
		link.SrcAddr = want.Local.AsSlice()
	}
	if have, err := h.link.LinkByName(h.cfg.Tunnel); err == nil {
		if v, ok := have.(*netlink.Vxlan); ok && !sameTunnel(link, v) {
			h.cfg.Logger.Info("the tunnel's link has another network identifier, port or address; it is replaced", "name", h.cfg.Tunnel)
			if err := removeLink(have); err != nil {
				return nil, fmt.Errorf("remove link %s: %w", h.cfg.Tunnel, err)
			}
		}
	}
	return h.ensureLink(link)
}

func sameTunnel(want, have *netlink.Vxlan) bool {
	return have.VxlanId == want.VxlanId && have.Port == want.Port && addressFrom(have.SrcAddr) == addressFrom(want.SrcAddr) &&
		!have.Learning && !have.Proxy && !have.FlowBased && have.VtepDevIndex == 0 && have.Group == nil
}

func (h *Host) applyTunnelLink(link netlink.Link, want *routes.Tunnel) error {
	name := h.cfg.Tunnel
	if link.Attrs().MTU != want.MTU {
		if err := h.link.LinkSetMTU(link, want.MTU); err != nil {
			return fmt.Errorf("mtu of %s: %w", name, err)
		}
	}
	if !bytes.Equal(link.Attrs().HardwareAddr, want.MAC[:]) {
		if err := h.link.LinkSetHardwareAddr(link, want.MAC[:]); err != nil {
			return fmt.Errorf("link-layer address of %s: %w", name, err)
		}
	}
	if err := offloadChecksums(name, h.cfg.Offload); err != nil {
		return fmt.Errorf("checksum offload of %s: %w", name, err)
	}
	return nil
}

// fdbEntry is an entry of the forwarding table: a link-layer address and the node that has it.
type fdbEntry struct {
	mac routes.MAC
	at  netip.Addr
}

func (h *Host) applyFDB(link netlink.Link, peers []routes.Peer) error {
	index := link.Attrs().Index
	have, err := h.neighbours(index, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("forwarding table of %s: %w", h.cfg.Tunnel, err)
	}
	missing := make(map[fdbEntry]struct{}, len(peers))
	for _, p := range peers {
		missing[fdbEntry{p.MAC, p.Via}] = struct{}{}
	}
	var stale []netlink.Neigh
	for i := range have {
		s := fdbEntry{macFrom(have[i].HardwareAddr), addressFrom(have[i].IP)}
		if _, ok := missing[s]; ok && have[i].State&unix.NUD_PERMANENT != 0 {
			delete(missing, s)
			continue
		}
		stale = append(stale, have[i])
	}
	entry := func(s fdbEntry) *netlink.Neigh {
		return &netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, State: unix.NUD_PERMANENT, Flags: netlink.NTF_SELF,
			IP: s.at.AsSlice(), HardwareAddr: s.mac[:]}
	}
	var errs []error
	for s := range missing {
		if err := h.link.NeighSet(entry(s)); err != nil {
			errs = append(errs, fmt.Errorf("forwarding entry %s at %s: %w", s.mac, s.at, err))
		}
	}
	for i := range stale { // an entry whose address moved to another node was replaced above
		s := fdbEntry{macFrom(stale[i].HardwareAddr), addressFrom(stale[i].IP)}
		if !s.at.IsValid() {
			continue
		}
		if err := h.link.NeighDel(entry(s)); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete forwarding entry %s at %s: %w", s.mac, s.at, err))
		}
	}
	return errors.Join(errs...)
}

func (h *Host) applyNeighbours(link netlink.Link, peers []routes.Peer, family int) error {
	index := link.Attrs().Index
	have, err := h.neighbours(index, family)
	if err != nil {
		return fmt.Errorf("neighbours on %s: %w", h.cfg.Tunnel, err)
	}
	missing := make(map[netip.Addr]routes.MAC, len(peers))
	for _, p := range peers {
		if p.Address.Is4() == (family == unix.AF_INET) {
			missing[p.Address] = p.MAC
		}
	}
	var errs []error
	for i := range have {
		n := &have[i]
		a := addressFrom(n.IP)
		mac, wanted := missing[a]
		switch {
		case n.State&unix.NUD_NOARP != 0: // multicast
		case wanted && n.State&unix.NUD_PERMANENT != 0 && macFrom(n.HardwareAddr) == mac:
			delete(missing, a)
		case !wanted:
			if err := h.link.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("delete neighbour %s: %w", a, err))
			}
		}
	}
	for a, mac := range missing {
		n := &netlink.Neigh{LinkIndex: index, Family: family, State: unix.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac[:]}
		if err := h.link.NeighSet(n); err != nil {
			errs = append(errs, fmt.Errorf("neighbour %s at %s: %w", a, mac, err))
		}
	}
	return errors.Join(errs...)
}

func macFrom(a net.HardwareAddr) (m routes.MAC) {
	copy(m[:], a)
	return m
}

func addressFrom(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
