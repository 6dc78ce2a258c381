package quota

import (
	"context"
	"errors"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/leader/workqueue"
)

// deviceClaims are charged by the devices they ask for, per DeviceClass, beside their number.
var deviceClaims = schema.GroupResource{Group: resourceapi.GroupName, Resource: "resourceclaims"}

// limitsDevices reports whether a quota has a limit that ResourceClaims are charged to: their number, the devices of a
// class, or an extended resource, which a DeviceClass may stand for.
func limitsDevices(q *v1.ResourceQuota) bool {
	for name := range q.Spec.Hard {
		extended, request := strings.CutPrefix(string(name), v1.DefaultResourceRequestsPrefix)
		if name == core.ClaimObjectCountName || strings.HasSuffix(string(name), v1.ResourceClaimsPerClass) || request && strings.Contains(extended, "/") {
			return true
		}
	}
	return false
}

// deviceCount are the informers that the usage of devices is reckoned from.
type deviceCount struct{ claims, classes cache.SharedIndexInformer }

// countDevices makes sure that ResourceClaims and DeviceClasses are watched, from the first quota that limits devices until
// ctx, which is Run's, ends, and that all of them are known.
func (c *controller) countDevices(ctx context.Context) error {
	d, err := c.deviceInformers(ctx)
	if err != nil {
		return err
	}
	if !cache.WaitFor(ctx, "", d.claims.HasSyncedChecker(), d.classes.HasSyncedChecker()) {
		return ctx.Err()
	}
	return nil
}

// deviceInformers returns the informers and starts them the first time. It unlocks by defer: a panic in making them is
// contained by the loop, which goes on.
func (c *controller) deviceInformers(ctx context.Context) (*deviceCount, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.devices == nil {
		d, err := c.watchDevices(ctx)
		if err != nil {
			return nil, err
		}
		c.devices = d
	}
	return c.devices, nil
}

// watchDevices makes the informers and starts them. c.mu is held.
func (c *controller) watchDevices(ctx context.Context) (*deviceCount, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.env.Reader, 0, informers.WithTransform(workqueue.Strip))
	resources := factory.Resource().V1()
	d := &deviceCount{resources.ResourceClaims().Informer(), resources.DeviceClasses().Informer()}
	byName := extendedresourcecache.NewExtendedResourceCache(klog.FromContext(ctx))
	_, err := d.classes.AddEventHandler(eventhandler.Contain("controller events", byName))
	changed := func(o any) {
		if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = tomb.Obj
		}
		if m, ok := o.(metav1.Object); ok {
			c.queue(m.GetNamespace())
		}
	}
	_, err2 := d.claims.AddEventHandler(eventhandler.Contain("controller events", cache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed}))
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	c.registry.Add(core.NewResourceClaimEvaluator(func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		i, err := factory.ForResource(gvr)
		if err != nil {
			return nil, err
		}
		return i.Lister(), nil
	}, byName, nil, nil))
	for _, i := range []cache.SharedIndexInformer{d.claims, d.classes} {
		c.running.Go(fault.Contained("controller", func() { i.RunWithContext(ctx) }))
	}
	return d, nil
}
