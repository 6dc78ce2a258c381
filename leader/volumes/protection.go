package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
	byClaim         = "balsa/claim"
)

// indexByClaim makes the pod informer findable by the claims pods use.
func indexByClaim(informer cache.SharedIndexInformer) error {
	if _, ok := informer.GetIndexer().GetIndexers()[byClaim]; ok {
		return nil
	}
	err := informer.AddIndexers(cache.Indexers{byClaim: func(o any) ([]string, error) {
		p, ok := o.(*v1.Pod)
		if !ok {
			return nil, nil
		}
		var out []string
		for _, k := range claimsOf(p) {
			out = append(out, k.String())
		}
		return out, nil
	}})
	if err != nil {
		return fmt.Errorf("indexing pods by claim: %w", err)
	}
	return nil
}

// claimsOf lists the claims a pod uses, those made for its ephemeral volumes included.
func claimsOf(p *v1.Pod) []workqueue.Key {
	var out []workqueue.Key
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			out = append(out, workqueue.Key{Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName})
		case v.Ephemeral != nil:
			out = append(out, workqueue.Key{Namespace: p.Namespace, Name: p.Name + "-" + v.Name})
		}
	}
	return out
}

// uses reports whether a pod keeps a claim from being deleted: it is bound to a node and has not ended.
func uses(p *v1.Pod) bool { return p.Spec.NodeName != "" && !pods.Terminal(p) }

type claimProtection struct {
	env    workqueue.Env
	claims corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
	loop   *workqueue.Loop[workqueue.Key]
}

// NewClaimProtection returns the controller that lets claims go once no pod uses them.
func NewClaimProtection(env workqueue.Env, workers int) (workqueue.Runner, error) {
	claims, podInformer := env.Informers.Core().V1().PersistentVolumeClaims(), env.Informers.Core().V1().Pods().Informer()
	c := &claimProtection{env: env, claims: claims.Lister(), pods: podInformer.GetIndexer()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		indexByClaim(podInformer),
		workqueue.Watch(c.loop, claims.Informer(), func(_, now *v1.PersistentVolumeClaim) {
			if now != nil && (now.DeletionTimestamp != nil) == slices.Contains(now.Finalizers, claimFinalizer) {
				c.loop.Add(workqueue.KeyOf(now))
			}
		}),
		workqueue.Watch(c.loop, podInformer, func(old, now *v1.Pod) {
			if old == nil || now != nil && uses(now) {
				return
			}
			for _, k := range claimsOf(old) {
				c.loop.Add(k)
			}
		}),
	)
}

func (c *claimProtection) reconcile(ctx context.Context, key workqueue.Key) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if err != nil {
		return ignoreGone(err)
	}
	has := slices.Contains(claim.Finalizers, claimFinalizer)
	switch {
	case claim.DeletionTimestamp == nil && !has:
		claim = claim.DeepCopy()
		claim.Finalizers = append(claim.Finalizers, claimFinalizer)
	case claim.DeletionTimestamp != nil && has:
		used, err := c.used(ctx, key)
		if err != nil || used {
			return err
		}
		claim = claim.DeepCopy()
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == claimFinalizer })
	default:
		return nil
	}
	_, err = c.env.Client.CoreV1().PersistentVolumeClaims(key.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// used asks the cache first and, before a claim is let go, the API: a pod may just have been bound.
func (c *claimProtection) used(ctx context.Context, key workqueue.Key) (bool, error) {
	cached, err := c.pods.ByIndex(byClaim, key.String())
	if err != nil {
		return true, err
	}
	for _, o := range cached {
		if p, ok := o.(*v1.Pod); ok && uses(p) {
			return true, nil
		}
	}
	live, err := c.env.Client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return true, err
	}
	for i := range live.Items {
		if uses(&live.Items[i]) && slices.Contains(claimsOf(&live.Items[i]), key) {
			return true, nil
		}
	}
	return false, nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

type volumeProtection struct {
	env     workqueue.Env
	volumes corelisters.PersistentVolumeLister
	loop    *workqueue.Loop[string]
}

// NewVolumeProtection returns the controller that lets volumes go once no claim is bound to them.
func NewVolumeProtection(env workqueue.Env, workers int) (workqueue.Runner, error) {
	volumes := env.Informers.Core().V1().PersistentVolumes()
	c := &volumeProtection{env: env, volumes: volumes.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(workqueue.Watch(c.loop, volumes.Informer(), func(_, now *v1.PersistentVolume) {
		if now != nil && (now.DeletionTimestamp != nil) == slices.Contains(now.Finalizers, volumeFinalizer) {
			c.loop.Add(now.Name)
		}
	}))
}

func (c *volumeProtection) reconcile(ctx context.Context, name string) error {
	v, err := c.volumes.Get(name)
	if err != nil {
		return ignoreGone(err)
	}
	has := slices.Contains(v.Finalizers, volumeFinalizer)
	switch {
	case v.DeletionTimestamp == nil && !has:
		v = v.DeepCopy()
		v.Finalizers = append(v.Finalizers, volumeFinalizer)
	case v.DeletionTimestamp != nil && has && v.Status.Phase != v1.VolumeBound:
		v = v.DeepCopy()
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == volumeFinalizer })
	default:
		return nil
	}
	_, err = c.env.Client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	return ignoreGone(err)
}
