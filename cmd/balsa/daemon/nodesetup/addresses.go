package nodesetup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
)

// This file decides at which addresses this machine is a node.

// Address returns the first configured address of this machine or, without one, the one it would use to reach the world.
// Nothing is sent to find out.
func Address(cfg *config.Node) (netip.Addr, error) {
	given, err := config.ParseNodeIPs(cfg.NodeIP)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(given) > 0 {
		return given[0], nil
	}
	addr, err := addressTowards("192.0.2.1:9")
	if err == nil {
		return addr, nil
	}
	if !errors.Is(err, syscall.ENETUNREACH) {
		return netip.Addr{}, fmt.Errorf("find this machine's address: %w; give it with --node-ip", err)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() {
			return prefix.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("this machine has no address but its loopback: give one with --node-ip")
}

// addressTowards is the source of packets to a destination, by the routes there are.
func addressTowards(destination string) (netip.Addr, error) {
	conn, err := net.Dial("udp", destination)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// IPs are the addresses that this machine's Node reports: those of --node-ip or, without it, first and, where pods
// have both families, one of the other. That of the pods' primary family comes first. What the cluster has agreed on must
// be in c.
func IPs(c *config.Node, first netip.Addr) (list []net.IP) {
	pods, _ := config.Prefixes(c.ClusterCIDR) // Validate reports what does not parse
	addrs, _ := config.ParseNodeIPs(c.NodeIP)
	if len(addrs) == 0 {
		addrs = []netip.Addr{first}
		if len(pods) == 2 {
			services, _ := config.Prefixes(c.ServiceCIDR)
			if other := otherAddress(first, slices.Concat(pods, services)); other.IsValid() {
				addrs = append(addrs, other)
			}
		}
	}
	if len(addrs) == 2 && len(pods) == 2 && addrs[0].Is4() != pods[0].Addr().Is4() {
		slices.Reverse(addrs)
	}
	for _, a := range addrs {
		list = append(list, a.AsSlice())
	}
	return list
}

// otherAddress finds the address of the other family than first's: that towards the default route or, without one, one of
// first's link. It must last, so that temporary ones (RFC 8981) are taken only when there is no other. Addresses inside
// the given networks are pods' and Services'. Not valid: there is none.
func otherAddress(first netip.Addr, inside []netip.Prefix) netip.Addr {
	family, world := netlink.FAMILY_V6, "[2001:db8::1]:9"
	if first.Is6() {
		family, world = netlink.FAMILY_V4, "192.0.2.1:9"
	}
	near, err := addressTowards(world)
	if err != nil {
		near = first
	}
	link := linkOf(near)
	if link == nil {
		return netip.Addr{}
	}
	found, err := netlink.AddrList(link, family)
	if err != nil {
		return netip.Addr{}
	}
	var best, temporary netip.Addr
	for _, one := range found {
		a, ok := netip.AddrFromSlice(one.IP)
		a = a.Unmap()
		switch within := slices.ContainsFunc(inside, func(p netip.Prefix) bool { return p.Contains(a) }); {
		case !ok || within || !a.IsGlobalUnicast() || one.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0:
		case one.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED) != 0 && family == netlink.FAMILY_V6:
			temporary = a
		case !best.IsValid() || a == near:
			best = a
		}
	}
	if best.IsValid() {
		return best
	}
	return temporary
}

// linkOf is the link that has the address; nil: none has.
func linkOf(a netip.Addr) netlink.Link {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil
	}
	for _, one := range all {
		if ip, ok := netip.AddrFromSlice(one.IP); ok && ip.Unmap() == a {
			link, err := netlink.LinkByIndex(one.LinkIndex)
			if err != nil {
				return nil
			}
			return link
		}
	}
	return nil
}
