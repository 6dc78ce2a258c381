package nodes

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

// evictionDecision says whether and when the NoExecute taints of a node evict a pod.
type evictionDecision struct {
	evict bool
	after time.Duration // counted from since; zero: at once
	since time.Time     // when the deciding taint was added; zero if the taint has no timeAdded
}

// decideEviction looks up every NoExecute taint in the pod's tolerations. One that is not tolerated evicts at once; else the
// shortest tolerationSeconds counts; tolerated without a limit means never.
func decideEviction(tolerations []v1.Toleration, taints []v1.Taint) evictionDecision {
	out := evictionDecision{}
	for i := range taints {
		t := &taints[i]
		if t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		tolerated, limit := tolerance(tolerations, t)
		if !tolerated {
			return evictionDecision{evict: true}
		}
		if limit == nil {
			continue
		}
		if d := max(0, *limit); !out.evict || d < out.after {
			out = evictionDecision{evict: true, after: d}
			if t.TimeAdded != nil {
				out.since = t.TimeAdded.Time
			}
		}
	}
	return out
}

// tolerance is how long a taint is tolerated: the shortest limit of all tolerations that match; nil is forever.
func tolerance(tolerations []v1.Toleration, t *v1.Taint) (tolerated bool, limit *time.Duration) {
	for i := range tolerations {
		o := &tolerations[i]
		if !tolerates(o, t) {
			continue
		}
		tolerated = true
		if o.TolerationSeconds != nil {
			if d := time.Duration(*o.TolerationSeconds) * time.Second; limit == nil || d < *limit {
				limit = &d
			}
		}
	}
	return tolerated, limit
}

func tolerates(o *v1.Toleration, t *v1.Taint) bool {
	if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
		return false
	}
	switch o.Operator {
	case v1.TolerationOpExists:
		return true
	case v1.TolerationOpEqual, "":
		return o.Key != "" && o.Value == t.Value
	}
	return false
}

type eviction struct {
	env   workqueue.Env
	nodes corelisters.NodeLister
	pods  cache.Indexer
	mu    sync.Mutex
	first map[types.UID]time.Time // when a pod was first seen with a decision to evict it
	loop  *workqueue.Loop[workqueue.Key]
}

// NewEviction returns the controller that deletes pods that do not tolerate a NoExecute taint of their node.
func NewEviction(env workqueue.Env, workers int) (workqueue.Runner, error) {
	nodes := env.Informers.Core().V1().Nodes()
	podInformer := env.Informers.Core().V1().Pods().Informer()
	c := &eviction{env: env, nodes: nodes.Lister(), pods: podInformer.GetIndexer(), first: map[types.UID]time.Time{}}
	registerMetrics()
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		pods.IndexByNode(podInformer),
		workqueue.Watch(c.loop, nodes.Informer(), c.nodeChanged),
		workqueue.Watch(c.loop, podInformer, c.podChanged),
	)
}

func (c *eviction) nodeChanged(old, now *v1.Node) {
	if now == nil || !repels(now) && (old == nil || !repels(old)) {
		return
	}
	for _, p := range pods.OnNode(c.pods, now.Name) {
		c.loop.Add(workqueue.KeyOf(p))
	}
}

func repels(n *v1.Node) bool {
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Effect == v1.TaintEffectNoExecute {
			return true
		}
	}
	return false
}

func (c *eviction) podChanged(old, now *v1.Pod) {
	if now == nil {
		c.pardon(old.UID)
		return
	}
	if now.Spec.NodeName == "" {
		return
	}
	if n, err := c.nodes.Get(now.Spec.NodeName); err != nil || repels(n) {
		c.loop.Add(workqueue.KeyOf(now))
	}
}

func (c *eviction) pardon(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, was := c.first[uid]
	delete(c.first, uid)
	return was
}

// from returns the time from which the pod's tolerationSeconds count.
func (c *eviction) from(uid types.UID, s evictionDecision, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	start, ok := c.first[uid]
	if !ok {
		start = now
		if !s.since.IsZero() && s.since.Before(now) {
			start = s.since
		}
		c.first[uid] = start
	}
	return start
}

func (c *eviction) reconcile(ctx context.Context, key workqueue.Key) error {
	o, exists, err := c.pods.GetByKey(key.String())
	p, ok := o.(*v1.Pod)
	if err != nil || !exists || !ok || p.DeletionTimestamp != nil || p.Spec.NodeName == "" {
		return err
	}
	n, err := c.nodes.Get(p.Spec.NodeName)
	if err != nil {
		return ignoreGone(err) // the collector deletes the pods of a node that is gone
	}
	s := decideEviction(p.Spec.Tolerations, n.Spec.Taints)
	if !s.evict {
		if c.pardon(p.UID) {
			c.env.Events.Eventf(podReference(p), v1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s/%s", p.Namespace, p.Name)
		}
		return nil
	}
	now := time.Now()
	if left := c.from(p.UID, s, now).Add(s.after).Sub(now); s.after > 0 && left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	return c.evict(ctx, p)
}

func (c *eviction) evict(ctx context.Context, p *v1.Pod) error {
	c.env.Events.Eventf(podReference(p), v1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s", p.Namespace, p.Name)
	if err := pods.Disrupt(ctx, c.env.Client, p, pods.Disruption{Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint"}); err != nil {
		return ignoreGone(err)
	}
	err := c.env.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsConflict(err) {
		return nil
	}
	if err == nil {
		taintDeletions.Inc()
	}
	return ignoreGone(err)
}
