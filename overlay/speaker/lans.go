package speaker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/host"
)

// lan is a network of one of this host's links.
type lan struct {
	link    link
	network netip.Prefix
}

// readLANs returns the networks of links that are up and have neighbours, without those inside the cluster, sorted.
func readLANs(ns host.Namespace, inside []netip.Prefix) (out []lan, err error) {
	var links []netlink.Link
	var addresses []netlink.Addr
	err = ns.Do(func() (err error) {
		if links, err = retryDump(netlink.LinkList); err != nil {
			return fmt.Errorf("links: %w", err)
		}
		addresses, err = retryDump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		return err
	})
	if err != nil {
		return nil, err
	}
	usable := map[int]link{}
	for _, l := range links {
		a := l.Attrs()
		const need, never = net.FlagUp | net.FlagBroadcast, net.FlagLoopback | net.FlagPointToPoint
		if a.Flags&need == need && a.Flags&never == 0 && a.RawFlags&unix.IFF_NOARP == 0 && a.RawFlags&unix.IFF_LOWER_UP != 0 && len(a.HardwareAddr) == 6 {
			usable[a.Index] = link{index: a.Index, name: a.Name, mac: string(a.HardwareAddr)}
		}
	}
	var networks []lan
	for i := range addresses {
		l, ok := usable[addresses[i].LinkIndex]
		p := prefixOf(&addresses[i])
		switch {
		case !ok || !p.IsValid() || p.IsSingleIP():
		case p.Addr().IsLinkLocalUnicast():
			if p.Addr().Is6() {
				l.from = p.Addr()
				usable[l.index] = l
			}
		case p.Addr().IsGlobalUnicast() && !slices.ContainsFunc(inside, p.Overlaps):
			networks = append(networks, lan{l, p.Masked()})
		}
	}
	for _, n := range networks {
		n.link = usable[n.link.index] // with its link-local address
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b lan) int {
		if c := comparePrefixes(a.network, b.network); c != 0 {
			return c
		}
		return a.link.index - b.link.index
	})
	return out, nil
}

// retryDump repeats a listing when the kernel reports that the objects changed during the dump.
func retryDump[T any](list func() ([]T, error)) (out []T, err error) {
	for range 10 {
		if out, err = list(); err != netlink.ErrDumpInterrupted {
			break
		}
	}
	return out, err
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

func prefixOf(a *netlink.Addr) netip.Prefix {
	if a.IPNet == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(a.IP)
	ones, _ := a.Mask.Size()
	if addr.Is4In6() {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}

// networksOf returns each network once.
func networksOf(lans []lan) []netip.Prefix {
	var out []netip.Prefix
	for _, l := range lans {
		out = append(out, l.network)
	}
	return slices.Compact(out)
}

// linkFor returns the link whose network contains the address, of several the one with the narrowest network.
func linkFor(lans []lan, a netip.Addr) (best lan, ok bool) {
	for _, l := range lans {
		if l.network.Contains(a) && (!ok || l.network.Bits() > best.network.Bits()) {
			best, ok = l, true
		}
	}
	return best, ok
}

// watchLANs calls changed now, and whenever a link or an address may have changed, until ctx ends or the netlink socket
// fails.
func watchLANs(ctx context.Context, ns host.Namespace, changed func()) error {
	var s *nl.NetlinkSocket
	err := ns.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	closed := make(chan struct{})
	go fault.Contained("overlay/speaker", func() {
		defer close(closed)
		<-watching.Done()
		s.Close()
	})()
	defer func() {
		stop()
		<-closed
	}()
	for {
		changed()
		_, _, err := s.Receive()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: the kernel dropped messages, so something changed
			return fmt.Errorf("watch links: %w", err)
		}
	}
}
