package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// ErrRangesExhausted: every range of the cluster's is taken.
var ErrRangesExhausted = errors.New("no address range left for the node")

// RangeConfig says which pod addresses of one family there are.
type RangeConfig struct {
	Cluster  netip.Prefix // all pods of the cluster, such as 10.244.0.0/16
	NodeBits int          // prefix length of one node's share, such as 24
}

// Validate reports whether shares fit into the cluster's range.
func (c RangeConfig) Validate() error {
	if !c.Cluster.IsValid() {
		return errors.New("cluster CIDR: missing or malformed")
	}
	if c.NodeBits < c.Cluster.Bits() || c.NodeBits > c.Cluster.Addr().BitLen()-2 {
		return fmt.Errorf("node prefix length /%d does not fit into cluster CIDR %s", c.NodeBits, c.Cluster)
	}
	if c.NodeBits-c.Cluster.Bits() > 24 {
		return fmt.Errorf("cluster CIDR %s holds too many ranges of /%d", c.Cluster, c.NodeBits)
	}
	return nil
}

// nextFree is the first share of the cluster's range that overlaps none of the taken ones.
func (c RangeConfig) nextFree(taken []netip.Prefix) (netip.Prefix, error) {
	used := make(map[netip.Prefix]bool, len(taken))
	var odd []netip.Prefix // of another size, from before a change of configuration
	for _, t := range taken {
		if t.Bits() == c.NodeBits {
			used[t.Masked()] = true
		} else {
			odd = append(odd, t)
		}
	}
	candidate := netip.PrefixFrom(c.Cluster.Masked().Addr(), c.NodeBits)
	for range 1 << (c.NodeBits - c.Cluster.Bits()) {
		if !used[candidate] && !overlapsAny(candidate, odd) {
			return candidate, nil
		}
		candidate = following(candidate)
	}
	return netip.Prefix{}, fmt.Errorf("%w: %s is divided into /%d, all taken", ErrRangesExhausted, c.Cluster, c.NodeBits)
}

func overlapsAny(p netip.Prefix, others []netip.Prefix) bool {
	for _, o := range others {
		if p.Overlaps(o) {
			return true
		}
	}
	return false
}

// following is the next prefix of the same length.
func following(p netip.Prefix) netip.Prefix {
	b := p.Addr().AsSlice()
	bit := p.Bits() - 1
	carry := byte(1) << (7 - bit%8)
	for i := bit / 8; i >= 0; i-- {
		sum := int(b[i]) + int(carry)
		b[i] = byte(sum)
		if sum < 256 {
			break
		}
		carry = 1
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

type ranges struct {
	env   workqueue.Env
	cfg   []RangeConfig // of each family at most one, the node's first first
	nodes corelisters.NodeLister
	given map[types.UID][]netip.Prefix // handed out, not yet in the cache; the single worker's own
	queue queue                        // nodes for which there was no share
	loop  *workqueue.Loop[string]
}

// NewRanges returns the controller that gives every node its share of the pod addresses, one of each family there is. It
// has one worker: two could hand out the same share.
func NewRanges(env workqueue.Env, cfg ...RangeConfig) (workqueue.Runner, error) {
	nodes := env.Informers.Core().V1().Nodes()
	c := &ranges{env: env, cfg: cfg, nodes: nodes.Lister(), given: map[types.UID][]netip.Prefix{}}
	c.loop = workqueue.NewLoop(env, 1, c.reconcile)
	var errs []error
	for _, one := range cfg {
		errs = append(errs, one.Validate())
	}
	return c.loop, errors.Join(errors.Join(errs...), workqueue.Watch(c.loop, nodes.Informer(), c.changed))
}

// changed queues a node that has no share, once: one for which there is none waits until another node gives its share back.
func (c *ranges) changed(old, now *v1.Node) {
	without := func(n *v1.Node) bool { return n != nil && n.Spec.PodCIDR == "" }
	if without(now) && (!without(old) || old.UID != now.UID) {
		c.loop.Add(now.Name)
	}
	// One that goes may have been given a share that the cache does not show yet.
	gone := now == nil && !c.queue.leave(old.Name)
	if gone || without(now) && old != nil && !without(old) {
		c.next()
	}
}

// next tries the node that has waited longest again. One share that was given back may serve it; when it does, the one
// after it is tried too, so that a larger share of an earlier configuration serves as many as it holds.
func (c *ranges) next() {
	if name, ok := c.queue.first(); ok {
		c.loop.Add(name)
	}
}

func (c *ranges) reconcile(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) || err == nil && node.Spec.PodCIDR != "" {
		if c.queue.leave(name) {
			c.next()
		}
		return nil
	}
	if err != nil {
		return err
	}
	shares, err := c.choose(node)
	if errors.Is(err, ErrRangesExhausted) {
		c.wait(node, err)
		return nil
	}
	if err != nil {
		return err
	}
	texts := make([]string, len(shares))
	for i, p := range shares {
		texts[i] = p.String()
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err == nil && c.queue.leave(name) {
		c.next()
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// wait lets a node wait for a share, and says so once.
func (c *ranges) wait(node *v1.Node, why error) {
	n, first := c.queue.join(node.Name)
	if !first {
		return
	}
	c.loop.Add(node.Name) // a share returned before the node was in the waiting list woke no node
	c.env.Events.Event(nodeReference(node), v1.EventTypeWarning, "CIDRNotAvailable", why.Error())
	if n == 1 {
		c.env.Log.Warn("no pod addresses are left for nodes; they wait until others leave, or for a larger --cluster-cidr", "node", node.Name, "err", why)
	}
}

// choose picks the shares once per node; a retry gets the same ones.
func (c *ranges) choose(node *v1.Node) ([]netip.Prefix, error) {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	alive := map[types.UID]bool{}
	var taken []netip.Prefix
	for _, n := range all {
		if n.Spec.PodCIDR == "" {
			alive[n.UID] = true
		}
		for _, s := range append([]string{n.Spec.PodCIDR}, n.Spec.PodCIDRs...) {
			if p, err := netip.ParsePrefix(s); err == nil {
				taken = append(taken, p)
			}
		}
	}
	for uid, shares := range c.given {
		if !alive[uid] { // shown by the cache, or gone
			delete(c.given, uid)
			continue
		}
		taken = append(taken, shares...)
	}
	if shares, ok := c.given[node.UID]; ok {
		return shares, nil
	}
	var shares []netip.Prefix
	for _, one := range c.cfg {
		p, err := one.nextFree(taken)
		if err != nil {
			return nil, err
		}
		shares = append(shares, p)
	}
	c.given[node.UID] = shares
	return shares, nil
}

// queue are names in the order in which they came, each once.
type queue struct {
	mu    sync.Mutex
	order []string
}

// join enters a name and returns how many there are; first is false when it was there.
func (q *queue) join(name string) (n int, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if first = !slices.Contains(q.order, name); first {
		q.order = append(q.order, name)
	}
	return len(q.order), first
}

// leave removes a name and tells whether it was there.
func (q *queue) leave(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := len(q.order)
	q.order = slices.DeleteFunc(q.order, func(n string) bool { return n == name })
	return len(q.order) < before
}

// first is the name that came first of those that are there.
func (q *queue) first() (string, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return "", false
	}
	return q.order[0], true
}

func nodeReference(n *v1.Node) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.Name)}
}
