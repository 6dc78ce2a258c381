package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/balsahq/balsa/fault"
)

// TargetKubelet is the target that means the node's own API.
const TargetKubelet = "kubelet"

// Prover does a TLS handshake to check that the peer of a connection is the node. The connection is not used afterwards.
type Prover func(ctx context.Context, c net.Conn) error

// Near returns the preferred nodes for an address, such as those with an endpoint of a Service.
type Near func(ctx context.Context, a netip.Addr) []string

// shortly is the timeout of a direct connection that failed before and is the only option left.
const shortly = 3 * time.Second

var errSlow = errors.New("no answer within the head start")

// route is a target and the connections to it that may be tried.
type route struct {
	key     string // of the target's verdict
	address string
	direct  bool // a direct connection may be tried
	last    bool // a direct connection is tried only after the nodes
	prove   Prover
	nodes   []*node
	target  string // the target in requests to nodes
}

// Kubelet connects to a node's own API. address is the one that the Node object has. prove checks the identity of the machine
// at that address; nil: it is not checked.
func (t *Tunnel) Kubelet(ctx context.Context, name, address string, prove Prover) (net.Conn, error) {
	j := route{key: name + "'s API", address: address, direct: t.cfg.Mode != Always || name == t.cfg.Self, target: TargetKubelet, prove: prove}
	return t.toNode(ctx, name, j)
}

// Node connects to an address of a node or of a pod on it.
func (t *Tunnel) Node(ctx context.Context, name, address string) (net.Conn, error) {
	ap, err := netip.ParseAddrPort(address)
	if err == nil && t.cfg.only(ap.Addr()) && name != t.cfg.Self {
		return t.within(ctx, "pods of "+name, address, []string{name})
	}
	return t.toNode(ctx, name, route{key: name, address: address, direct: t.cfg.Mode != Always || name == t.cfg.Self, target: address})
}

// toNode connects to a target that only this node can reach for the server.
func (t *Tunnel) toNode(ctx context.Context, name string, j route) (net.Conn, error) {
	if n := t.node(name); n != nil && name != t.cfg.Self {
		j.nodes = []*node{n}
	}
	c, err := t.connect(ctx, j)
	if err != nil && len(j.nodes) == 0 && name != t.cfg.Self && t.cfg.Mode != Never {
		err = fmt.Errorf("%w; and node %s %w", err, name, ErrNotConnected)
	}
	return c, err
}

// Cluster connects to any address: directly or through nodes to a pod or a Service, directly to all others. near, which may be
// nil, returns the nodes that are preferred for an address.
func (t *Tunnel) Cluster(ctx context.Context, network, address string, near Near) (net.Conn, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !t.cfg.only(ap.Addr()) || t.cfg.Mode == Never {
		return t.cfg.Dial(ctx, network, address)
	}
	var preferred []string
	if near != nil && t.any() {
		preferred = near(ctx, ap.Addr().Unmap())
	}
	return t.within(ctx, ap.Addr().String(), address, preferred)
}

// within connects to an address of the pods' or the Services' networks.
func (t *Tunnel) within(ctx context.Context, key, address string, preferred []string) (net.Conn, error) {
	j := route{key: key, address: address, target: address, direct: true, last: !t.cfg.Inside}
	if t.cfg.Inside && slices.Contains(preferred, t.cfg.Self) {
		return t.cfg.Dial(ctx, "tcp", address)
	}
	if t.cfg.Mode != Never {
		j.nodes = t.choose(preferred)
	}
	if t.cfg.Mode == Always {
		j.direct = len(j.nodes) == 0 && t.cfg.Inside
	}
	c, err := t.connect(ctx, j)
	if err != nil && len(j.nodes) == 0 && !t.cfg.Inside && t.cfg.Mode != Never {
		err = fmt.Errorf("%w; this server takes no pods, and no node %w to reach them", err, ErrNotConnected)
	}
	return c, err
}

// connect connects directly or through nodes, as the route allows.
func (t *Tunnel) connect(ctx context.Context, j route) (net.Conn, error) {
	switch {
	case len(j.nodes) == 0 && !j.direct:
		return nil, errors.New("direct connections are not tried (--node-tunnel=always)")
	case len(j.nodes) == 0:
		if t.verdict(j.key).barred(time.Now()) { // direct connections failed lately: use a short timeout
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, shortly)
			defer cancel()
		}
		return t.cfg.Dial(ctx, "tcp", j.address)
	case !j.direct:
		return t.byNode(ctx, j)
	case j.last || t.verdict(j.key).barred(time.Now()):
		c, err := t.byNode(ctx, j)
		if err == nil || final(ctx, err) {
			return c, err
		}
		direct, second := t.directly(ctx, j)
		if second != nil {
			return nil, both(err, second)
		}
		return direct, nil
	}
	return t.race(ctx, j)
}

// both joins two errors in one line; either may be nil.
func both(a, b error) error {
	if a == nil || b == nil {
		return errors.Join(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// final reports whether further attempts are useless: a node has refused the target, or the caller has given up.
func final(ctx context.Context, err error) bool {
	var refused *Refused
	return errors.As(err, &refused) || ctx.Err() != nil
}

// byNode tries the nodes one after the other until one connects or refuses the target.
func (t *Tunnel) byNode(ctx context.Context, j route) (net.Conn, error) {
	var failed error
	for _, n := range j.nodes {
		c, err := t.open(ctx, n, j.target)
		if err == nil || final(ctx, err) {
			return c, err
		}
		failed = both(failed, err)
	}
	return nil, failed
}

// directly connects without a node. Once for each target with a Prover it checks the identity of the machine there first.
func (t *Tunnel) directly(ctx context.Context, j route) (net.Conn, error) {
	c, err := t.cfg.Dial(ctx, "tcp", j.address)
	if err != nil || j.prove == nil || t.verdict(j.key).proven {
		return c, err
	}
	err = j.prove(ctx, c)
	_ = c.Close()
	if err != nil {
		return nil, fmt.Errorf("another machine answers at %s: %w", j.address, err)
	}
	return t.cfg.Dial(ctx, "tcp", j.address)
}

type outcome struct {
	conn   net.Conn
	err    error
	direct bool
}

// race tries a direct connection, and after the head start or a failure also one through nodes. The first connection wins.
func (t *Tunnel) race(ctx context.Context, j route) (net.Conn, error) {
	racing, cancel := context.WithCancel(ctx)
	results := make(chan outcome, 2)
	running := 0
	defer func() {
		cancel()
		for range running {
			if late := <-results; late.err == nil {
				_ = late.conn.Close()
			}
		}
	}()
	run := func(direct bool, way func(context.Context, route) (net.Conn, error)) {
		running++
		go func() {
			var c net.Conn
			err := fault.Contain("control/tunnel", func() (err error) {
				fault.Point("control/tunnel")
				c, err = way(racing, j)
				return err
			})
			results <- outcome{c, err, direct}
		}()
	}
	run(true, t.directly)
	head := time.NewTimer(t.cfg.HeadStart)
	defer head.Stop()
	reason, asked := errSlow, false
	ask := func() {
		if !asked {
			asked = true
			run(false, t.byNode)
		}
	}
	var failed error
	for running > 0 {
		select {
		case <-head.C:
			ask()
		case r := <-results:
			running--
			if r.err == nil {
				t.recordResult(j, r.direct, reason)
				return r.conn, nil
			}
			failed = both(failed, r.err)
			if !r.direct && final(ctx, r.err) {
				return nil, failed
			}
			if r.direct {
				reason = r.err
				ask()
			}
		}
	}
	return nil, failed
}

// recordResult records whether the direct connection or the tunnel worked.
func (t *Tunnel) recordResult(j route, direct bool, reason error) {
	if direct {
		t.good(j.key, j.prove != nil)
		return
	}
	t.bad(j.key, reason)
}
