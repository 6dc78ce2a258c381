package servicecidr

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env      workqueue.Env
	pods     []netip.Prefix
	cidrs    networkinglisters.ServiceCIDRLister
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	loop     *workqueue.Loop[workqueue.Key]
}

// New returns the controller of ServiceCIDRs. pods are the networks of pods.
func New(env workqueue.Env, workers int, pods []netip.Prefix) (workqueue.Runner, error) {
	cidrs, core := env.Informers.Networking().V1().ServiceCIDRs(), env.Informers.Core().V1()
	c := &controller{env: env, pods: pods, cidrs: cidrs.Lister(), services: core.Services().Lister(), nodes: core.Nodes().Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	workqueue.Need(c.loop, core.Nodes().Informer())
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, cidrs.Informer(), func(_, now *networkingv1.ServiceCIDR) {
			if now != nil {
				c.loop.Add(workqueue.KeyOf(now))
			}
			c.queueEnding() // another network may hold the addresses of one that ends, or no longer
		}),
		workqueue.Watch(c.loop, core.Services().Informer(), func(old, now *v1.Service) {
			if old != nil && (now == nil || !slices.Equal(old.Spec.ClusterIPs, now.Spec.ClusterIPs)) {
				c.queueEnding()
			}
		}),
	)
}

// queueEnding looks again at the ServiceCIDRs that are on their way out.
func (c *controller) queueEnding() {
	all, _ := c.cidrs.List(labels.Everything()) // a lister over a cache does not fail
	for _, o := range all {
		if o.DeletionTimestamp != nil {
			c.loop.Add(workqueue.KeyOf(o))
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	cidr, err := c.cidrs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	in, err2 := c.cluster()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	v := judge(cidr, in, time.Now())
	cidr = cidr.DeepCopy()
	if cidr, err = c.keep(ctx, cidr, v.release); err != nil {
		return ignoreGone(err)
	}
	if v.ready != nil && differs(cidr.Status.Conditions, *v.ready) {
		meta.SetStatusCondition(&cidr.Status.Conditions, *v.ready)
		if _, err := c.env.Client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, cidr, metav1.UpdateOptions{}); err != nil {
			return ignoreGone(err)
		}
		if v.ready.Reason == reasonOverlaps {
			c.env.Events.Event(cidr, v1.EventTypeWarning, reasonOverlaps, v.ready.Message)
		}
	}
	if v.again > 0 {
		c.loop.AddAfter(key, v.again)
	}
	return nil
}

func (c *controller) cluster() (cluster, error) {
	services, err := c.services.List(labels.Everything())
	nodes, err2 := c.nodes.List(labels.Everything())
	cidrs, err3 := c.cidrs.List(labels.Everything())
	return cluster{pods: c.pods, nodes: nodes, services: services, cidrs: cidrs}, errors.Join(err, err2, err3)
}

// keep puts the finalizer on, or takes it off where the ServiceCIDR is released, and returns the object as it is then.
func (c *controller) keep(ctx context.Context, cidr *networkingv1.ServiceCIDR, release bool) (*networkingv1.ServiceCIDR, error) {
	has := slices.Contains(cidr.Finalizers, finalizer)
	switch {
	case release && has:
		cidr.Finalizers = slices.DeleteFunc(cidr.Finalizers, func(f string) bool { return f == finalizer })
	case cidr.DeletionTimestamp == nil && !has:
		cidr.Finalizers = append(cidr.Finalizers, finalizer)
	default:
		return cidr, nil
	}
	return c.env.Client.NetworkingV1().ServiceCIDRs().Update(ctx, cidr, metav1.UpdateOptions{})
}

func differs(have []metav1.Condition, want metav1.Condition) bool {
	now := meta.FindStatusCondition(have, want.Type)
	return now == nil || now.Status != want.Status || now.Reason != want.Reason || now.Message != want.Message
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
