package overlay

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routing"
)

// forgetFlows makes the kernel forget datagram flows to backends that are gone. Failing to is not worth a retry: such a
// flow ends by itself when its client is silent for a while.
func (e *engine) forgetFlows(stale []routing.Stale) {
	if len(stale) == 0 {
		return
	}
	err := e.ns.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		_, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, newFlowFilter(stale))
		return err
	})
	if err != nil {
		e.cfg.Logger.Warn("stale flows not forgotten", "err", err)
	}
}

// flowFilter picks the flows to forget.
type flowFilter map[flowTarget][]routing.Stale

type flowTarget struct {
	protocol uint8
	port     uint16
}

func newFlowFilter(stale []routing.Stale) flowFilter {
	f := make(flowFilter)
	for _, s := range stale {
		at := flowTarget{uint8(s.Protocol), s.Port}
		f[at] = append(f[at], s)
	}
	return f
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, s := range f[flowTarget{flow.Forward.Protocol, flow.Forward.DstPort}] {
		to, from := address(flow.Forward.DstIP), address(flow.Reverse.SrcIP)
		if s.IP.IsValid() && s.IP != to {
			continue
		}
		switch {
		case s.Backend.IsValid() && s.Backend == netip.AddrPortFrom(from, flow.Reverse.SrcPort):
			return true
		case !s.Backend.IsValid() && from == to: // it was never led anywhere
			return true
		}
	}
	return false
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
