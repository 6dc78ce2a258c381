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

// Address returns the address of this machine as a node: the first one of --node-ip or, without it, the source address of
// packets to the Internet by this machine's routes. Without a default route it is the first global address of an
// interface. No packet is sent.
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
		return netip.Addr{}, fmt.Errorf("cannot find this machine's address: %w; give it with --node-ip", err)
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

// addressTowards returns the source address of packets to destination (host:port) by this machine's routes.
func addressTowards(destination string) (netip.Addr, error) {
	conn, err := net.Dial("udp", destination)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// IPs returns the addresses that this machine's Node reports. They are --node-ip or, without it, first (see Address) and, in
// a cluster whose pods have both families, an address of the other family. The address of the pods' primary family comes
// first. The cluster's settings must be in c (membership.Agree).
func IPs(c *config.Node, first netip.Addr) (list []net.IP) {
	pods, _ := config.Prefixes(c.ClusterCIDR) // Validate reports networks that do not parse
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

// otherAddress returns an address of the family that first does not have. It is on the link of the default route of that
// family or, without such a route, on the link of first. Temporary addresses (RFC 8981) are used only when there is no
// other, because they change. Addresses in the networks of inside belong to pods and Services and are skipped. The result
// is not valid when there is no address.
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

// linkOf returns the link that has the address, or nil.
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
