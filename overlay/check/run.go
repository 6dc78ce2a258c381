package check

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
)

// Config configures Run.
type Config struct {
	Nodes []NodeTarget
	// Call asks one node.
	Call func(ctx context.Context, node string, r *Request) (*Reply, error)
	// Publish makes one Service for each probe, and removes them again; nil: Services are not checked.
	Publish func(ctx context.Context, run string, probes map[string]netip.Addr) (map[string]Published, func(), error)
	// Policy makes pods and a policy that closes them when close is called; nil: policies are not checked.
	Policy func(ctx context.Context, run string, nodes []string) (*Closed, error)
	// DNS is the address of the cluster's DNS. Probes ask it for ClusterName and OutsideName, unless they are "".
	DNS                      netip.Addr
	ClusterName, OutsideName string
	// Others is how many other nodes each node tries; 0: all.
	Others int
	// Within bounds the check, without its cleanup.
	Within time.Duration
}

// Published holds the addresses at which a Service is reached.
type Published struct {
	Cluster  netip.AddrPort
	NodePort uint16
}

// Closed is a set of pods, one per node, that a NetworkPolicy can close.
type Closed struct {
	Pods map[string]netip.AddrPort
	// Deny makes the policy; Remove removes the pods and the policy.
	Deny   func(ctx context.Context) error
	Remove func()
}

const (
	callsAtOnce = 16
	closeTime   = 30 * time.Second
)

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Nodes) == 0 {
		errs = append(errs, errors.New("check: there is no node to check"))
	}
	if c.Call == nil {
		errs = append(errs, errors.New("check: Call is missing"))
	}
	if c.Within <= 0 {
		errs = append(errs, errors.New("check: Within is missing"))
	}
	if (c.ClusterName != "" || c.OutsideName != "") && !c.DNS.IsValid() {
		errs = append(errs, errors.New("check: DNS is missing"))
	}
	return errors.Join(errs...)
}

// runner is the state of one running check.
type runner struct {
	cfg       Config
	run       string
	nodes     []*NodeReport
	published map[string]Published
	closed    *Closed
	report    *Report
}

// Run carries out the check and removes its probes, pods and Services. It returns an error only if nothing could be
// checked.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &runner{cfg: cfg, run: newRun(), report: &Report{Nodes: make([]NodeReport, len(cfg.Nodes))}}
	slices.SortFunc(cfg.Nodes, func(x, y NodeTarget) int { return cmp.Compare(x.Name, y.Name) })
	for i, n := range cfg.Nodes {
		c.report.Nodes[i].Target = n
		c.nodes = append(c.nodes, &c.report.Nodes[i])
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Within)
	defer cancel()
	defer c.close(context.WithoutCancel(ctx))
	c.open(ctx)
	if c.cfg.Publish != nil {
		published, remove, err := cfg.Publish(ctx, c.run, c.addresses())
		if remove != nil {
			defer remove()
		}
		if c.published = published; err != nil {
			c.fault("Services are not checked: %v", err)
		}
	}
	c.probe(ctx, c.targets)
	c.policy(ctx)
	c.close(context.WithoutCancel(ctx)) // the report needs the nodes that probes heard
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.fault("the check did not finish in %v: give it more time with --timeout", cfg.Within)
		return c.report, nil
	}
	return c.report, ctx.Err()
}

func newRun() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (c *runner) fault(format string, args ...any) {
	c.report.Faults = append(c.report.Faults, fmt.Sprintf(format, args...))
}

// each calls fn for all nodes, for several at once.
func (c *runner) each(fn func(n *NodeReport)) {
	slots := make(chan struct{}, callsAtOnce)
	var running sync.WaitGroup
	for _, n := range c.nodes {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if err := fault.Do("overlay/check", func() { fn(n) }); err != nil {
				n.Fault = err.Error()
			}
		})
	}
	running.Wait()
}

func (c *runner) open(ctx context.Context) {
	life := min(c.cfg.Within+closeTime, longestLife)
	c.each(func(n *NodeReport) {
		reply, err := c.cfg.Call(ctx, n.Target.Name, &Request{Run: c.run, Open: &Open{Seconds: int(life / time.Second)}})
		switch {
		case err != nil:
			n.Fault = err.Error()
		case reply.Opened == nil || len(reply.Opened.Addresses) == 0:
			n.Fault = "its probe got no address from the network"
		default:
			n.Opened = reply.Opened
		}
	})
}

// close detaches the probes; it may be called again.
func (c *runner) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	c.each(func(n *NodeReport) {
		if n.Opened == nil || n.Heard != nil {
			return
		}
		reply, err := c.cfg.Call(ctx, n.Target.Name, &Request{Run: c.run, Close: true})
		if err != nil {
			return // the agent removes the probe when its lifetime is over
		}
		n.Heard = append([]string{}, reply.Heard...)
	})
}

func (c *runner) addresses() map[string]netip.Addr {
	out := make(map[string]netip.Addr)
	for _, n := range c.nodes {
		if n.Opened != nil {
			out[n.Target.Name] = n.Opened.Addresses[0]
		}
	}
	return out
}

// probe has all nodes try their targets, and adds the results to the report.
func (c *runner) probe(ctx context.Context, targets func(n *NodeReport, others []*NodeReport) []Target) {
	c.each(func(n *NodeReport) {
		if n.Opened == nil || ctx.Err() != nil {
			return
		}
		list := targets(n, c.others(n))
		if len(list) == 0 {
			return
		}
		seconds := int(longestTry / time.Second)
		if deadline, ok := ctx.Deadline(); ok {
			seconds = max(1, min(seconds, int(time.Until(deadline)/time.Second)))
		}
		reply, err := c.cfg.Call(ctx, n.Target.Name, &Request{Run: c.run, Probe: &Probe{Targets: list, Seconds: seconds}})
		if err != nil {
			n.Fault = err.Error()
			return
		}
		n.Results = append(n.Results, reply.Results...)
	})
}

// others returns the nodes that n tries: itself, and the next ones in a ring, so that each node is tried equally often.
func (c *runner) others(n *NodeReport) []*NodeReport {
	at := slices.Index(c.nodes, n)
	ring := append(slices.Clone(c.nodes[at:]), c.nodes[:at]...)
	if c.cfg.Others > 0 && c.cfg.Others < len(ring)-1 {
		ring = ring[:c.cfg.Others+1]
	}
	return ring
}

func (c *runner) targets(n *NodeReport, others []*NodeReport) []Target {
	var out []Target
	add := func(k Kind, to string, at netip.AddrPort) { out = append(out, Target{Kind: k, To: to, Address: at}) }
	for _, o := range others {
		to, self := o.Target.Name, o == n
		if o.Target.Address.IsValid() {
			if !self {
				add(Node, to, o.Target.Address)
			}
			add(PodNode, to, o.Target.Address)
		}
		if o.Opened == nil {
			continue
		}
		pod := netip.AddrPortFrom(o.Opened.Addresses[0], EchoPort)
		add(NodePod, to, pod)
		if !self {
			add(Pod, to, pod)
			add(PodUDP, to, pod)
			add(MTU, to, pod)
		}
		if s, ok := c.published[to]; ok {
			add(Service, to, s.Cluster)
			if s.NodePort > 0 && o.Target.Address.IsValid() {
				add(NodePort, to, netip.AddrPortFrom(o.Target.Address.Addr(), s.NodePort))
			}
		}
	}
	for k, name := range map[Kind]string{DNS: c.cfg.ClusterName, Outside: c.cfg.OutsideName} {
		if name != "" {
			out = append(out, Target{Kind: k, Address: netip.AddrPortFrom(c.cfg.DNS, 53), Name: name})
		}
	}
	return out
}

// policy tries pods before and after a policy closes them.
func (c *runner) policy(ctx context.Context) {
	if c.cfg.Policy == nil || ctx.Err() != nil {
		return
	}
	var names []string
	for _, n := range c.nodes {
		if n.Opened != nil {
			names = append(names, n.Target.Name)
		}
	}
	closed, err := c.cfg.Policy(ctx, c.run, names)
	if closed != nil && closed.Remove != nil {
		defer closed.Remove()
	}
	if err != nil {
		c.fault("NetworkPolicy is not checked: %v", err)
		return
	}
	c.closed = closed
	c.probe(ctx, c.pods(Admitted))
	if err := closed.Deny(ctx); err != nil {
		c.fault("NetworkPolicy is not checked: %v", err)
		return
	}
	c.probe(ctx, c.pods(Denied))
}

// pods returns targets for policies: pods on those nodes whose paths work.
func (c *runner) pods(k Kind) func(*NodeReport, []*NodeReport) []Target {
	return func(n *NodeReport, others []*NodeReport) []Target {
		var out []Target
		for _, o := range others[:min(len(others), 3)] {
			if at, ok := c.closed.Pods[o.Target.Name]; ok && c.passes(n, o) {
				out = append(out, Target{Kind: k, To: o.Target.Name, Address: at})
			}
		}
		return out
	}
}

func (c *runner) passes(from, to *NodeReport) bool {
	if from == to {
		return true
	}
	for _, r := range from.Results {
		if r.Kind == Pod && r.To == to.Target.Name {
			return r.OK
		}
	}
	return false
}
