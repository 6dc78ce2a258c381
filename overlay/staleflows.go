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

// staleFlows deletes the kernel's UDP flows to backends that are gone. Finding them means reading every flow, so a separate
// goroutine does it; requests that arrive during one pass are served together in the next.
type staleFlows struct {
	ns     host.Namespace
	logger *slog.Logger

	mu    sync.Mutex
	stale map[bool][]services.Stale // by family: IPv4 or not
	wake  chan struct{}
}

func newFlows(ns host.Namespace, logger *slog.Logger) *staleFlows {
	return &staleFlows{ns: ns, logger: logger, stale: make(map[bool][]services.Stale), wake: make(chan struct{}, 1)}
}

// enqueue requests the deletion of the flows; it does not block.
func (f *staleFlows) enqueue(v4 bool, stale []services.Stale) {
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

func (f *staleFlows) run(ctx context.Context) error {
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
			f.deleteFlows(v4, list)
		}
	}
}

// deleteFlows finds and deletes the flows. A failure is not tried again: such a flow expires when its client has been
// silent for a while.
func (f *staleFlows) deleteFlows(v4 bool, stale []services.Stale) {
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
		f.logger.Warn("cannot delete UDP flows to backends that are gone; they end when their clients are silent", "err", err)
	}
}

// flowFilter picks the flows to delete: for each destination the backends that are gone. The invalid backend stands for flows
// whose destination was not rewritten.
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
