package overlay

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/services"
)

// flows makes the kernel forget datagram flows to backends that are gone. Looking for them means looking at every flow
// there is, so it has a goroutine of its own, and what comes while that looks is looked for at once.
type flows struct {
	ns     host.Namespace
	logger *slog.Logger

	mu    sync.Mutex
	stale map[bool][]services.Stale // by family: IPv4 or not
	wake  chan struct{}
}

func newFlows(ns host.Namespace, logger *slog.Logger) *flows {
	return &flows{ns: ns, logger: logger, stale: make(map[bool][]services.Stale), wake: make(chan struct{}, 1)}
}

// forget has the flows forgotten soon; it never blocks.
func (f *flows) forget(v4 bool, stale []services.Stale) {
	if len(stale) == 0 {
		return
	}
	f.mu.Lock()
	f.stale[v4] = append(f.stale[v4], stale...)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *flows) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.wake:
		}
		f.mu.Lock()
		stale := f.stale
		f.stale = make(map[bool][]services.Stale)
		f.mu.Unlock()
		for v4, list := range stale {
			f.delete(v4, list)
		}
	}
}

// delete looks for the flows. Failing to is not worth a retry: such a flow ends by itself when its client is silent for a
// while.
func (f *flows) delete(v4 bool, stale []services.Stale) {
	family := netlink.InetFamily(unix.AF_INET6)
	if v4 {
		family = unix.AF_INET
	}
	err := f.ns.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		_, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, family, newFlowFilter(stale))
		return err
	})
	if err != nil {
		f.logger.Warn("stale flows not forgotten", "err", err)
	}
}

// flowFilter picks the flows to forget: by where they go, the backends that are gone; among them the invalid one for flows
// that were led nowhere.
type flowFilter map[flowTarget]map[netip.AddrPort]struct{}

type flowTarget struct {
	protocol uint8
	at       netip.AddrPort // without an address: any
}

func newFlowFilter(stale []services.Stale) flowFilter {
	f := make(flowFilter)
	for _, s := range stale {
		at := flowTarget{uint8(s.Protocol), netip.AddrPortFrom(s.IP, s.Port)}
		if f[at] == nil {
			f[at] = make(map[netip.AddrPort]struct{})
		}
		f[at][s.Backend] = struct{}{}
	}
	return f
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to, from := address(flow.Forward.DstIP), address(flow.Reverse.SrcIP)
	led := netip.AddrPortFrom(from, flow.Reverse.SrcPort)
	if from == to {
		led = netip.AddrPort{}
	}
	for _, ip := range []netip.Addr{to, {}} {
		if _, gone := f[flowTarget{flow.Forward.Protocol, netip.AddrPortFrom(ip, flow.Forward.DstPort)}][led]; gone {
			return true
		}
	}
	return false
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
