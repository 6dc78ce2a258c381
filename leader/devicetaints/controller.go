package devicetaints

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

const byPool = "balsa/device-pool" // of slices: their pool; of claims: the pools that they have devices of

type controller struct {
	env        workqueue.Env
	pods       corelisters.PodLister
	claims     resourcelisters.ResourceClaimLister
	claimIndex cache.Indexer
	sliceIndex cache.Indexer
	loop       *workqueue.Loop[workqueue.Key]

	mu        sync.Mutex
	sentenced map[types.UID]bool // pods that are to be evicted: a pardon is told to users
}

// New returns the controller that evicts pods from tainted devices.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	podInformer, resources := env.Informers.Core().V1().Pods(), env.Informers.Resource().V1()
	claims, slices := resources.ResourceClaims(), resources.ResourceSlices()
	c := &controller{
		env: env, pods: podInformer.Lister(), claims: claims.Lister(), sentenced: map[types.UID]bool{},
		claimIndex: claims.Informer().GetIndexer(), sliceIndex: slices.Informer().GetIndexer(),
	}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		claims.Informer().AddIndexers(cache.Indexers{byPool: poolsOfClaim}),
		slices.Informer().AddIndexers(cache.Indexers{byPool: poolOfSlice}),
		workqueue.Watch(c.loop, slices.Informer(), c.sliceChanged),
		workqueue.Watch(c.loop, claims.Informer(), func(old, now *resourceapi.ResourceClaim) {
			for _, claim := range workqueue.Either(old, now) {
				c.addConsumers(claim)
			}
		}),
		workqueue.Watch(c.loop, podInformer.Informer(), c.podChanged),
	)
}

func poolKey(driver, pool string) string { return driver + "/" + pool }

func poolOfSlice(o any) ([]string, error) {
	if s, ok := o.(*resourceapi.ResourceSlice); ok {
		return []string{poolKey(s.Spec.Driver, s.Spec.Pool.Name)}, nil
	}
	return nil, nil
}

func poolsOfClaim(o any) (keys []string, err error) {
	claim, ok := o.(*resourceapi.ResourceClaim)
	if !ok || claim.Status.Allocation == nil {
		return nil, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		keys = append(keys, poolKey(r.Driver, r.Pool))
	}
	return keys, nil
}

func (c *controller) sliceChanged(old, now *resourceapi.ResourceSlice) {
	for _, s := range workqueue.Either(old, now) {
		if !repels(s) && s == now && (old == nil || !repels(old)) {
			continue
		}
		found, err := c.claimIndex.ByIndex(byPool, poolKey(s.Spec.Driver, s.Spec.Pool.Name))
		if err != nil {
			continue // the index does not exist: a mistake that New reports
		}
		for _, o := range found {
			if claim, ok := o.(*resourceapi.ResourceClaim); ok {
				c.addConsumers(claim)
			}
		}
	}
}

func (c *controller) addConsumers(claim *resourceapi.ResourceClaim) {
	for _, ref := range claim.Status.ReservedFor {
		if ref.APIGroup == "" && ref.Resource == "pods" {
			c.loop.Add(workqueue.Key{Namespace: claim.Namespace, Name: ref.Name})
		}
	}
}

func (c *controller) podChanged(old, now *v1.Pod) {
	if now == nil {
		c.pardon(old.UID)
		return
	}
	if now.Spec.NodeName != "" && (old == nil || old.Spec.NodeName == "") && (len(now.Spec.ResourceClaims) > 0 || now.Status.ExtendedResourceClaimStatus != nil) {
		c.loop.Add(workqueue.KeyOf(now))
	}
}

// pardon forgets a pod that was to be evicted; false when it was not.
func (c *controller) pardon(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.sentenced[uid]
	delete(c.sentenced, uid)
	return was
}

func (c *controller) sentencePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sentenced[uid] = true
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	p, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && (p.DeletionTimestamp != nil || p.Spec.NodeName == "") {
		return nil
	}
	if err != nil {
		return err
	}
	s := c.sentenceOf(p)
	if !s.evict {
		if c.pardon(p.UID) {
			c.env.Events.Event(podReference(p), v1.EventTypeNormal, "DeviceTaintManagerEviction", "Cancelling deletion")
		}
		return nil
	}
	c.sentencePod(p.UID)
	if left := time.Until(s.at); left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	return c.evict(ctx, p)
}

// sentenceOf judges all claims that are reserved for the pod.
func (c *controller) sentenceOf(p *v1.Pod) (s sentence) {
	for _, entry := range entries(p) {
		name, mustOwn, err := resourceclaim.Name(p, &entry)
		if err != nil || name == nil {
			continue
		}
		claim, err := c.claims.ResourceClaims(p.Namespace).Get(*name)
		if err != nil || claim.Status.Allocation == nil || !resourceclaim.IsReservedForPod(p, claim, false) ||
			mustOwn && resourceclaim.IsForPod(p, claim, false) != nil {
			continue
		}
		s = s.earlier(judge(claim.Status.Allocation, c.device))
	}
	return s
}

// entries are the claims of a pod, with the one that stands for its extended resources.
func entries(p *v1.Pod) []v1.PodResourceClaim {
	out := p.Spec.ResourceClaims
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		out = append(out[:len(out):len(out)], v1.PodResourceClaim{ResourceClaimName: &s.ResourceClaimName})
	}
	return out
}

func (c *controller) device(driver, pool, name string) *resourceapi.Device {
	found, err := c.sliceIndex.ByIndex(byPool, poolKey(driver, pool))
	if err != nil {
		return nil
	}
	var slices []*resourceapi.ResourceSlice
	for _, o := range found {
		if s, ok := o.(*resourceapi.ResourceSlice); ok {
			slices = append(slices, s)
		}
	}
	return deviceIn(slices, name)
}

func (c *controller) evict(ctx context.Context, p *v1.Pod) error {
	c.env.Events.Event(podReference(p), v1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	err := pods.Disrupt(ctx, c.env.Client, p, pods.Disruption{
		Reason: "DeletionByDeviceTaintManager", Message: "Device Taint manager: deleting due to NoExecute taint",
	})
	if err == nil {
		err = c.env.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or another pod of that name
	}
	return err
}

func podReference(p *v1.Pod) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}
