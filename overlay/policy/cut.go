package policy

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/policy/plan"
	"github.com/balsahq/balsa/overlay/policy/rules"
)

// cut ends connections that began when they were still allowed, and lets go on those that are again. First their packets are
// dropped unless the kernel knows the connection, then the kernel is made to forget it. Failing to is logged and not tried
// again before the next change: new connections are judged in any case.
func (e *Engine) cut() {
	if !e.changed {
		return
	}
	tightened := e.tightened
	e.changed, e.tightened, e.lastCut = false, false, time.Now()
	err := e.uncut()
	if tightened && err == nil {
		err = e.ns.Do(e.cutAll)
	}
	if err != nil && e.live != nil {
		e.cfg.Logger.Warn("connections that are no longer allowed were not cut", "err", err)
	}
}

// uncut lets go on what is allowed again.
func (e *Engine) uncut() error {
	if e.live == nil {
		return nil // there are no tables
	}
	flows, err := e.tables.Flows()
	if err != nil || len(flows) == 0 {
		return err
	}
	still := e.allowed(flows)
	if len(still) == len(flows) {
		return nil
	}
	return e.tables.CutOnly(still)
}

// allowed are those of the connections that might begin now.
func (e *Engine) allowed(flows []rules.Flow) []rules.Flow {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(flows), e.allows)
}

// allows tells whether a connection might begin; e.mu is held.
func (e *Engine) allows(f rules.Flow) bool {
	return e.state.Allows(plan.Flow{From: f.From, To: f.To, Protocol: f.Protocol, Port: f.ToPort})
}

func (e *Engine) cutAll() error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	own, err := addressesOf(h)
	if err != nil {
		return err
	}
	if err := e.cutFamily(h, unix.AF_INET, own); err != nil || !e.cfg.IPv6 {
		return err
	}
	return e.cutFamily(h, unix.AF_INET6, own)
}

// addressesOf are the node's own: what it says to its pods, and they to it, is not judged.
func addressesOf(h *netlink.Handle) (map[netip.Addr]bool, error) {
	list, err := h.AddrList(nil, netlink.FAMILY_ALL)
	own := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		own[address(a.IP)] = true
	}
	return own, err
}

func (e *Engine) cutFamily(h *netlink.Handle, family netlink.InetFamily, own map[netip.Addr]bool) error {
	list, err := h.ConntrackTableList(netlink.ConntrackTable, family)
	if err != nil {
		return err
	}
	unwanted := e.unwanted(list, own)
	if len(unwanted) == 0 {
		return nil
	}
	if err := e.tables.Cut(slices.Collect(maps.Keys(unwanted))); err != nil {
		return err
	}
	_, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, family, unwanted)
	e.cfg.Logger.Info("connections cut that network policies no longer allow", "connections", len(unwanted))
	return err
}

// unwanted are the connections that would not be allowed to begin.
func (e *Engine) unwanted(list []*netlink.ConntrackFlow, own map[netip.Addr]bool) unwanted {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := unwanted{}
	for _, c := range list {
		f := flowOf(c)
		if own[f.From] || own[f.To] || !e.state.Judged(f.From) && !e.state.Judged(f.To) {
			continue
		}
		if !e.allows(f) {
			out[f] = struct{}{}
		}
	}
	return out
}

// flowOf is the connection as it is forwarded: where the destination was rewritten, the answer comes from the new one.
func flowOf(c *netlink.ConntrackFlow) rules.Flow {
	return rules.Flow{
		From: address(c.Forward.SrcIP), To: address(c.Reverse.SrcIP), Protocol: plan.Protocol(c.Forward.Protocol),
		FromPort: c.Forward.SrcPort, ToPort: c.Reverse.SrcPort,
	}
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// unwanted picks connections to forget.
type unwanted map[rules.Flow]struct{}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (u unwanted) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	_, ok := u[flowOf(c)]
	return ok
}
