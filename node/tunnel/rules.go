package tunnel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// How a server names the node's own API, and the node's reports of what it and its pods use.
const (
	kubelet         = "kubelet"
	resourceMetrics = "resource-metrics"
)

// dialTime bounds a connection on the node's side.
const dialTime = 10 * time.Second

// Rules say what servers may have this node connect to.
type Rules struct {
	// Kubelet is where the node's own API listens, on this machine.
	Kubelet netip.AddrPort
	// Networks are those of pods and Services, Own the node's addresses.
	Networks []netip.Prefix
	Own      []netip.Addr
	// Metrics makes the connection that a server reads reports from; nil: this node has none.
	Metrics func() net.Conn
}

// Resolve is the address to connect to for a target, or why there is none.
func (r Rules) Resolve(target string) (netip.AddrPort, error) {
	if target == kubelet {
		return r.Kubelet, nil
	}
	ap, err := netip.ParseAddrPort(target)
	a := ap.Addr().Unmap()
	switch {
	case err != nil || a.Zone() != "" || ap.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("%q is no address and port of a pod or Service", target)
	case a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast():
	case slices.Contains(r.Own, a):
		return netip.AddrPortFrom(a, ap.Port()), nil
	case slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(a) }):
		return netip.AddrPortFrom(a, ap.Port()), nil
	}
	return netip.AddrPort{}, fmt.Errorf("connects to its own API, pods, Services and its own addresses, not to %s", a)
}

// Dial connects to a target.
func (r Rules) Dial(ctx context.Context, target string) (net.Conn, error) {
	if target == resourceMetrics && r.Metrics != nil {
		return r.Metrics(), nil
	}
	to, err := r.Resolve(target)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTime}
	return d.DialContext(ctx, "tcp", to.String())
}
