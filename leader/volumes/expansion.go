package volumes

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

type expansion struct {
	env     workqueue.Env
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	loop    *workqueue.Loop[workqueue.Key]
}

// NewExpansion returns the controller that records, in events of claims, what resizes a volume. The controller resizes
// nothing itself: a CSI volume is resized by the driver's resizer, a local one by the administrator. Other volumes do not grow.
func NewExpansion(env workqueue.Env, workers int) (workqueue.Runner, error) {
	claims, volumes := env.Informers.Core().V1().PersistentVolumeClaims(), env.Informers.Core().V1().PersistentVolumes()
	c := &expansion{env: env, claims: claims.Lister(), volumes: volumes.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	workqueue.Need(c.loop, volumes.Informer())
	return c.loop, workqueue.Watch(c.loop, claims.Informer(), func(old, now *v1.PersistentVolumeClaim) {
		if now != nil && asksForMore(now) && (old == nil || !asksForMore(old) || requested(old).Cmp(*requested(now)) != 0) {
			c.loop.Add(workqueue.KeyOf(now))
		}
	})
}

func (c *expansion) reconcile(_ context.Context, key workqueue.Key) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if err != nil {
		return ignoreGone(err)
	}
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && !boundTo(v, claim) {
		return nil
	}
	if err != nil {
		return err
	}
	if v.Spec.CSI == nil && v.Spec.Local == nil {
		c.env.Events.Event(claim, v1.EventTypeWarning, "ExternalExpanding", errNoResizer.Error())
		return nil
	}
	c.env.Events.Event(claim, v1.EventTypeNormal, "ExternalExpanding", "waiting for an external controller to expand this PVC")
	return nil
}

var errNoResizer = errors.New("the volume behind this claim was made by hand and does not grow; ask for the size it has, or move the data to a claim of a class that provisions")
