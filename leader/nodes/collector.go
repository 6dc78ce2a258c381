package nodes

import (
	"context"
	"errors"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	// quarantine is how long a node has to be gone before its pods are deleted.
	quarantine = 40 * time.Second
	// sweep is the interval at which ended pods are counted.
	sweep = 20 * time.Second
)

// task is a key of the collector's queue: exactly one field is set.
type task struct {
	node  string        // check the pods of this node, which seems to be gone
	pod   workqueue.Key // check this unscheduled pod that is being deleted
	ended bool          // count the pods that have ended
}

type collector struct {
	env       workqueue.Env
	threshold int
	nodes     corelisters.NodeLister
	podLister corelisters.PodLister
	pods      cache.Indexer
	loop      *workqueue.Loop[task]
}

// NewCollector returns the controller that deletes pods that no kubelet and no other controller deletes. threshold is how many
// ended pods the cluster keeps; zero or less keeps them all.
func NewCollector(env workqueue.Env, threshold int) (workqueue.Runner, error) {
	nodes := env.Informers.Core().V1().Nodes()
	podInformer := env.Informers.Core().V1().Pods()
	c := &collector{env: env, threshold: threshold, nodes: nodes.Lister(), podLister: podInformer.Lister(), pods: podInformer.Informer().GetIndexer()}
	c.loop = workqueue.NewLoop(env, 1, c.reconcile)
	return c.loop, errors.Join(
		pods.IndexByNode(podInformer.Informer()),
		workqueue.Watch(c.loop, nodes.Informer(), func(old, now *v1.Node) {
			if now == nil {
				c.loop.AddAfter(task{node: old.Name}, quarantine)
			} else if outOfService(now) {
				c.loop.Add(task{node: now.Name})
			}
		}),
		workqueue.Watch(c.loop, podInformer.Informer(), c.podChanged),
	)
}

func outOfService(n *v1.Node) bool {
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Key == v1.TaintNodeOutOfService {
			return !nodeReady(n)
		}
	}
	return false
}

func (c *collector) podChanged(old, now *v1.Pod) {
	switch {
	case now == nil:
	case now.Spec.NodeName == "":
		if now.DeletionTimestamp != nil {
			c.loop.Add(task{pod: workqueue.KeyOf(now)})
		}
	default:
		n, err := c.nodes.Get(now.Spec.NodeName)
		if apierrors.IsNotFound(err) {
			c.loop.AddAfter(task{node: now.Spec.NodeName}, quarantine)
		} else if err == nil && now.DeletionTimestamp != nil && outOfService(n) {
			c.loop.Add(task{node: n.Name})
		}
	}
	if now != nil && pods.Terminal(now) && (old == nil || !pods.Terminal(old)) && c.threshold > 0 {
		c.loop.AddAfter(task{ended: true}, sweep)
	}
}

func (c *collector) reconcile(ctx context.Context, t task) error {
	switch {
	case t.ended:
		return c.trim(ctx)
	case t.node != "":
		return c.lost(ctx, t.node)
	}
	p, err := c.podLister.Pods(t.pod.Namespace).Get(t.pod.Name)
	if err != nil || p.Spec.NodeName != "" || p.DeletionTimestamp == nil {
		return ignoreGone(err)
	}
	return c.remove(ctx, p, "", "") // no kubelet runs it, so no kubelet will finish its deletion
}

// lost deletes the pods of a node that no longer exists, or that has the taint out-of-service.
func (c *collector) lost(ctx context.Context, name string) error {
	stopped := false
	n, err := c.env.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		if stopped = outOfService(n); !stopped {
			return nil
		}
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	all := pods.OnNode(c.pods, name)
	return controllerref.Parallel(len(all), func(i int) error {
		switch {
		case !stopped:
			return c.remove(ctx, all[i], "DeletionByPodGC", "PodGC: node no longer exists")
		case all[i].DeletionTimestamp != nil:
			return c.remove(ctx, all[i], "DeletionByPodGC", "PodGC: node is out of service")
		}
		return nil
	})
}

// trim deletes the ended pods beyond the threshold, evicted ones and the oldest first.
func (c *collector) trim(ctx context.Context) error {
	all, err := c.podLister.List(labels.Everything())
	if err != nil {
		return err
	}
	gone := surplus(all, c.threshold)
	return controllerref.Parallel(len(gone), func(i int) error { return c.remove(ctx, gone[i], "", "") })
}

func surplus(all []*v1.Pod, threshold int) []*v1.Pod {
	var ended []*v1.Pod
	for _, p := range all {
		if pods.Terminal(p) && p.DeletionTimestamp == nil {
			ended = append(ended, p)
		}
	}
	if len(ended) <= threshold {
		return nil
	}
	evicted := func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed && p.Status.Reason == "Evicted" }
	sort.Slice(ended, func(i, j int) bool {
		if evicted(ended[i]) != evicted(ended[j]) {
			return evicted(ended[i])
		}
		if !ended[i].CreationTimestamp.Equal(&ended[j].CreationTimestamp) {
			return ended[i].CreationTimestamp.Before(&ended[j].CreationTimestamp)
		}
		return ended[i].Name < ended[j].Name
	})
	return ended[:len(ended)-threshold]
}

// remove deletes a pod without a grace period. A pod that has not ended is first marked as failed, so that its owner counts
// it.
func (c *collector) remove(ctx context.Context, p *v1.Pod, reason, message string) error {
	if !pods.Terminal(p) && reason != "" {
		if err := pods.Disrupt(ctx, c.env.Client, p, pods.Disruption{Reason: reason, Message: message, Phase: v1.PodFailed}); err != nil {
			return ignoreGone(err)
		}
	}
	now := int64(0)
	err := c.env.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
	})
	if apierrors.IsConflict(err) {
		return nil
	}
	return ignoreGone(err)
}
