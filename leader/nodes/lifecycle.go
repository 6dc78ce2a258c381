package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

// LifecycleConfig tunes when a silent node counts as unreachable.
type LifecycleConfig struct {
	Grace    time.Duration // how long a node may be silent; upstream's default is 50 s
	Liveness Liveness      // optional
}

type lifecycle struct {
	env      workqueue.Env
	liveness Liveness
	nodes    corelisters.NodeLister
	pods     cache.Indexer
	pulse    *pulse
	loop     *workqueue.Loop[string]
}

// NewLifecycle returns the controller that decides whether nodes are alive and taints them by their conditions.
func NewLifecycle(env workqueue.Env, workers int, cfg LifecycleConfig) (workqueue.Runner, error) {
	nodes := env.Informers.Core().V1().Nodes()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	leases := coordinationinformers.NewLeaseInformer(env.Reader, v1.NamespaceNodeLease, 0, nil)
	if cfg.Grace <= 0 {
		cfg.Grace = 50 * time.Second
	}
	c := &lifecycle{env: env, liveness: cfg.Liveness, nodes: nodes.Lister(), pods: podInformer.GetIndexer(), pulse: newPulse(cfg.Grace)}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	err := errors.Join(
		pods.IndexByNode(podInformer),
		leases.SetTransform(workqueue.Strip),
		workqueue.Watch(c.loop, nodes.Informer(), c.nodeChanged),
		workqueue.Watch(c.loop, leases, c.leaseChanged),
		workqueue.Watch(c.loop, podInformer, c.podChanged),
	)
	runners := []workqueue.Runner{workqueue.Informer(leases), c.loop}
	if cfg.Liveness != nil {
		runners = append(runners, workqueue.RunnerFunc(c.follow))
	}
	return workqueue.RunAll(runners...), err
}

// follow processes the changes of the liveness source. It records all nodes of one change before any of them is reconciled,
// so that the failure of many nodes is recognized.
func (c *lifecycle) follow(ctx context.Context) error {
	for {
		changed := c.liveness.Changed()
		c.checkLiveness(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// checkLiveness asks the liveness source about every node and queues the nodes whose answer changed.
func (c *lifecycle) checkLiveness(now time.Time) {
	var news []string
	for _, n := range c.all() {
		if alive, known := c.liveness.Alive(n.Name); c.pulse.record(n.Name, known && !alive, now) {
			news = append(news, n.Name)
		}
	}
	for _, name := range news {
		c.loop.Add(name)
	}
	if len(news) > 0 {
		c.queueTainted()
	}
}

// queueTainted queues the nodes whose taints depend on how many other nodes are ready.
func (c *lifecycle) queueTainted() {
	for _, n := range c.all() {
		if !nodeReady(n) {
			c.loop.Add(n.Name)
		}
	}
}

func (c *lifecycle) nodeChanged(old, now *v1.Node) {
	if now == nil {
		c.pulse.forget(old.Name)
		c.queueAll() // with one ready node fewer the taints of other nodes may have to change
		return
	}
	if old == nil || beats(old, now) {
		c.pulse.heard(now.Name, time.Now())
	}
	if old == nil && c.liveness != nil {
		if alive, known := c.liveness.Alive(now.Name); known && !alive {
			c.pulse.record(now.Name, true, time.Now())
		}
	}
	c.loop.Add(now.Name)
	if old == nil || nodeReady(old) != nodeReady(now) {
		c.queueAll()
	}
}

// beats reports whether the node itself wrote its status: a heartbeat has a newer time.
func beats(old, now *v1.Node) bool {
	for i := range now.Status.Conditions {
		n := &now.Status.Conditions[i]
		if o := nodeCondition(old, n.Type); o == nil && n.Status != v1.ConditionUnknown || o != nil && o.LastHeartbeatTime.Before(&n.LastHeartbeatTime) {
			return true
		}
	}
	return false
}

func nodeReady(n *v1.Node) bool {
	c := nodeCondition(n, v1.NodeReady)
	return c != nil && c.Status == v1.ConditionTrue
}

func (c *lifecycle) queueAll() {
	for _, n := range c.all() {
		c.loop.Add(n.Name)
	}
}

func (c *lifecycle) all() []*v1.Node {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache does not fail
	}
	return all
}

func (c *lifecycle) leaseChanged(old, now *coordinationv1.Lease) {
	if now == nil || old != nil && old.Spec.RenewTime.Equal(now.Spec.RenewTime) {
		return
	}
	c.pulse.renewed(now, time.Now())
	if old == nil {
		c.loop.Add(now.Name)
		return
	}
	// A node that is not ready is reconciled at once; for any other only the deadline moves.
	if n, err := c.nodes.Get(now.Name); err == nil && !nodeReady(n) {
		c.loop.Add(now.Name)
	}
}

// podChanged queues the node of a pod that is ready although its node is not.
func (c *lifecycle) podChanged(_, now *v1.Pod) {
	if now == nil || now.Spec.NodeName == "" || !pods.Ready(now) {
		return
	}
	if n, err := c.nodes.Get(now.Spec.NodeName); err == nil && unknown(n) {
		c.loop.Add(n.Name)
	}
}

func unknown(n *v1.Node) bool {
	r := nodeCondition(n, v1.NodeReady)
	return r != nil && r.Status == v1.ConditionUnknown
}

func (c *lifecycle) reconcile(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		c.pulse.forget(name)
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	if c.silent(node, now) {
		if conditions := unknownConditions(node, now); conditions != nil {
			node, err = c.markSilent(ctx, node, conditions)
			if err != nil {
				return ignoreGone(err)
			}
		}
	}
	if taints, changed := taintsFor(node, c.mayEvict(node, now), now); changed {
		if err := c.writeTaints(ctx, node, taints); err != nil {
			return ignoreGone(err)
		}
	}
	if unknown(node) {
		return c.markPods(ctx, node)
	}
	return nil
}

// silent reports whether the node counts as unreachable, and schedules the next check if not.
func (c *lifecycle) silent(node *v1.Node, now time.Time) bool {
	left := c.pulse.left(node.Name, now)
	if left > 0 {
		c.loop.AddAfter(node.Name, left)
	}
	return left <= 0
}

// mayEvict reports whether enough of the cluster's nodes are ready. It counts self, which may be newer than the cache.
func (c *lifecycle) mayEvict(self *v1.Node, now time.Time) bool {
	total, well := 0, 0
	for _, n := range c.all() {
		if n.Name == self.Name {
			n = self
		}
		total++
		if nodeReady(n) && !c.pulse.dead(n.Name, now) {
			well++
		}
	}
	return evictable(total, total-well)
}

func (c *lifecycle) markSilent(ctx context.Context, node *v1.Node, conditions []v1.NodeCondition) (*v1.Node, error) {
	was := nodeReady(node)
	node = node.DeepCopy()
	node.Status.Conditions = conditions
	node, err := c.env.Client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	if err == nil && was {
		c.env.Events.Eventf(nodeReference(node), v1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	}
	return node, err
}

func (c *lifecycle) writeTaints(ctx context.Context, node *v1.Node, taints []v1.Taint) error {
	if equality.Semantic.DeepEqual(taints, node.Spec.Taints) {
		return nil
	}
	if taints == nil {
		taints = []v1.Taint{}
	}
	// The list of taints is merged by key alone, and one key may carry two effects: replace it whole, against the
	// version it was made from.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// markPods sets every ready pod on a silent node to not ready, so that Services do not use it.
func (c *lifecycle) markPods(ctx context.Context, node *v1.Node) error {
	var ready []*v1.Pod
	for _, p := range pods.OnNode(c.pods, node.Name) {
		if pods.Ready(p) {
			ready = append(ready, p)
		}
	}
	return controllerref.Parallel(len(ready), func(i int) error {
		p := ready[i].DeepCopy()
		for j := range p.Status.Conditions {
			if p.Status.Conditions[j].Type == v1.PodReady {
				p.Status.Conditions[j].Status = v1.ConditionFalse
				p.Status.Conditions[j].LastTransitionTime = metav1.Now()
			}
		}
		_, err := c.env.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		if err == nil {
			c.env.Events.Event(podReference(p), v1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		}
		return ignoreGone(err)
	})
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func podReference(p *v1.Pod) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}
