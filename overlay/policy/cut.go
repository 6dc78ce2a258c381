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

// cutConnections ends connections that policies no longer allow, and restores cut connections that are allowed again. To
// end one, a rule first drops its packets unless conntrack knows the connection, and then its conntrack entry is deleted. A
// failure is logged and tried again at the next change; new connections are subject to the rules in any case.
func (e *Engine) cutConnections() {
	if !e.changed {
		return
	}
	tightened := e.tightened
	e.changed, e.tightened, e.lastCut = false, false, time.Now()
	err := e.restoreAllowed()
	if tightened && err == nil {
		err = e.ns.Do(e.cutAll)
	}
	if err != nil && e.watching != nil {
		e.cfg.Logger.Warn("cannot cut connections that network policies no longer allow; they go on until policies change again", "err", err)
	}
}

// restoreAllowed restores connections that were cut and are allowed again.
func (e *Engine) restoreAllowed() error {
	if e.watching == nil {
		return nil // there are no tables
	}
	flows, err := e.tables.Flows()
	if err != nil || len(flows) == 0 {
		return err
	}
	still := e.notAllowed(flows)
	if len(still) == len(flows) {
		return nil
	}
	return e.tables.CutOnly(still)
}

// notAllowed returns the connections that the current policies would not allow.
func (e *Engine) notAllowed(flows []rules.Flow) []rules.Flow {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(flows), e.allows)
}

// allows reports whether the current policies would allow a connection; the caller holds e.mu.
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

// addressesOf returns the node's own addresses: no policy applies between the node and its pods.
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
	e.cfg.Logger.Info("network policies no longer allow some connections; they were cut", "connections", len(unwanted))
	return err
}

// unwanted returns the connections that the current policies would not allow.
func (e *Engine) unwanted(list []*netlink.ConntrackFlow, own map[netip.Addr]bool) unwanted {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := unwanted{}
	for _, c := range list {
		f := flowOf(c)
		if own[f.From] || own[f.To] || !e.state.Isolated(f.From) && !e.state.Isolated(f.To) {
			continue
		}
		if !e.allows(f) {
			out[f] = struct{}{}
		}
	}
	return out
}

// flowOf returns the connection as it is forwarded. Where the destination was rewritten, answers come from the new one.
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

// unwanted are connections to delete.
type unwanted map[rules.Flow]struct{}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (u unwanted) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	_, ok := u[flowOf(c)]
	return ok
}
