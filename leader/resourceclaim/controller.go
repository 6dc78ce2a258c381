package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	byClaim    = "balsa/resource-claim"          // of pods: the claims that they use
	byTemplate = "balsa/resource-claim-template" // of pods: the templates that they name
	byOwner    = "balsa/pod-owner"               // of claims: the UID of the pod that they were made for

	// manager owns status.resourceClaimStatuses of pods. The name is upstream's.
	manager = "ResourceClaimController"
	// mutationTTL is how long an own write counts that the informer has not shown.
	mutationTTL = time.Minute
)

type controller struct {
	env       workqueue.Env
	pods      corelisters.PodLister
	podIndex  cache.Indexer
	claims    resourcelisters.ResourceClaimLister
	templates resourcelisters.ResourceClaimTemplateLister
	// made are the claims by owner, with those just created: without it a pod would get a second claim when its turn comes again before
	// the informer has shown the first.
	made cache.MutationCache

	podLoop   *workqueue.Loop[workqueue.Key]
	claimLoop *workqueue.Loop[workqueue.Key]
}

// New returns the controller of ResourceClaims.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	pods, resources := env.Informers.Core().V1().Pods(), env.Informers.Resource().V1()
	claims, templates := resources.ResourceClaims(), resources.ResourceClaimTemplates()
	c := &controller{env: env, pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(), claims: claims.Lister(), templates: templates.Lister()}
	c.podLoop = workqueue.NewLoop(env, workers, c.syncPod)
	c.claimLoop = workqueue.NewLoop(env, workers, c.syncClaim)
	err := errors.Join(
		pods.Informer().AddIndexers(cache.Indexers{byClaim: ofPod(claimNames), byTemplate: ofPod(templateNames)}),
		claims.Informer().AddIndexers(cache.Indexers{byOwner: func(o any) ([]string, error) {
			if claim, ok := o.(*resourceapi.ResourceClaim); ok && owner(claim).UID != "" {
				return []string{string(owner(claim).UID)}, nil
			}
			return nil, nil
		}}),
	)
	if err != nil {
		return nil, err
	}
	indexer := claims.Informer().GetIndexer()
	c.made = cache.NewIntegerResourceVersionMutationCache(klog.Background(), indexer, indexer, mutationTTL, true)
	workqueue.Need(c.podLoop, claims.Informer(), templates.Informer())
	workqueue.Need(c.claimLoop, pods.Informer())
	return workqueue.RunAll(c.podLoop, c.claimLoop), errors.Join(
		workqueue.Watch(c.podLoop, pods.Informer(), c.podChanged),
		workqueue.Watch(c.podLoop, templates.Informer(), func(_, now *resourceapi.ResourceClaimTemplate) {
			if now != nil {
				c.addPods(byTemplate, workqueue.KeyOf(now))
			}
		}),
		workqueue.Watch(c.claimLoop, claims.Informer(), func(old, now *resourceapi.ResourceClaim) {
			if now != nil {
				c.claimLoop.Add(workqueue.KeyOf(now))
			}
			c.addPods(byClaim, workqueue.KeyOf(workqueue.Newest(old, now)))
		}),
	)
}

// ofPod is an index of pods by names in their namespace.
func ofPod(names func(*v1.Pod) []string) cache.IndexFunc {
	return func(o any) (keys []string, err error) {
		pod, ok := o.(*v1.Pod)
		if !ok {
			return nil, nil
		}
		for _, name := range names(pod) {
			keys = append(keys, pod.Namespace+"/"+name)
		}
		return keys, nil
	}
}

func templateNames(p *v1.Pod) (names []string) {
	for i := range p.Spec.ResourceClaims {
		if t := p.Spec.ResourceClaims[i].ResourceClaimTemplateName; t != nil {
			names = append(names, *t)
		}
	}
	return names
}

func (c *controller) addPods(index string, key workqueue.Key) {
	found, err := c.podIndex.ByIndex(index, key.String())
	if err != nil {
		return // the index does not exist: a mistake that New reports
	}
	for _, o := range found {
		if pod, ok := o.(*v1.Pod); ok {
			c.podLoop.Add(workqueue.KeyOf(pod))
		}
	}
}

func (c *controller) podChanged(old, now *v1.Pod) {
	p := workqueue.Newest(old, now)
	if len(p.Spec.ResourceClaims) == 0 && p.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	if now == nil || done(now) {
		for _, name := range claimNames(p) {
			c.claimLoop.Add(workqueue.Key{Namespace: p.Namespace, Name: name})
		}
		return
	}
	if old == nil || old.UID != now.UID || old.Spec.NodeName != now.Spec.NodeName || !slices.Equal(claimNames(old), claimNames(now)) {
		c.podLoop.Add(workqueue.KeyOf(now))
	}
}

func (c *controller) syncPod(ctx context.Context, key workqueue.Key) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && (pod.DeletionTimestamp != nil || done(pod)) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.makeClaims(ctx, pod); err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		return nil // the scheduler reserves its claims
	}
	for i := range pod.Spec.ResourceClaims {
		if err := c.reserve(ctx, pod, &pod.Spec.ResourceClaims[i]); err != nil {
			return err
		}
	}
	return nil
}

// makeClaims makes the claims that are missing and names them in the pod's status.
func (c *controller) makeClaims(ctx context.Context, pod *v1.Pod) error {
	statuses, changed := []v1.PodResourceClaimStatus{}, false
	for i := range pod.Spec.ResourceClaims {
		entry := &pod.Spec.ResourceClaims[i]
		if entry.ResourceClaimTemplateName == nil {
			continue
		}
		claim, err := c.ensure(ctx, pod, entry)
		if err != nil {
			c.env.Events.Eventf(pod, v1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v", entry.Name, err)
			return fmt.Errorf("claim %s: %w", entry.Name, err)
		}
		name, _, err := resourceclaim.Name(pod, entry)
		if err == nil && name == nil {
			statuses = append(statuses, v1.PodResourceClaimStatus{Name: entry.Name}) // a claim was meant not to be made
			continue
		}
		changed = changed || err != nil || *name != claim.Name
		statuses = append(statuses, v1.PodResourceClaimStatus{Name: entry.Name, ResourceClaimName: &claim.Name})
	}
	if !changed {
		return nil
	}
	return c.writeStatuses(ctx, pod, statuses)
}

// ensure returns the claim made for the pod's entry. It is nil if the status says that none is to be made.
func (c *controller) ensure(ctx context.Context, pod *v1.Pod, entry *v1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	name, _, err := resourceclaim.Name(pod, entry)
	if err == nil && name == nil {
		return nil, nil
	}
	if err == nil {
		claim, err := c.claims.ResourceClaims(pod.Namespace).Get(*name)
		if err == nil && metav1.IsControlledBy(claim, pod) {
			return claim, nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	owned, err := c.owned(pod)
	if err != nil {
		return nil, err
	}
	if claim := madeFor(owned, entry.Name); claim != nil {
		return claim, nil
	}
	template, err := c.templates.ResourceClaimTemplates(pod.Namespace).Get(*entry.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", *entry.ResourceClaimTemplateName, err)
	}
	claim, err := c.env.Client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, claimFor(pod, entry.Name, template), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create ResourceClaim: %w", err)
	}
	c.made.Mutation(claim)
	return claim, nil
}

// owned are the claims that were made for the pod.
func (c *controller) owned(pod *v1.Pod) (claims []*resourceapi.ResourceClaim, err error) {
	found, err := c.made.ByIndex(byOwner, string(pod.UID))
	for _, o := range found {
		if claim, ok := o.(*resourceapi.ResourceClaim); ok {
			claims = append(claims, claim)
		}
	}
	return claims, err
}

// reserve reserves an allocated claim for a pod that is on its node without the scheduler.
func (c *controller) reserve(ctx context.Context, pod *v1.Pod, entry *v1.PodResourceClaim) error {
	name, mustOwn, err := resourceclaim.Name(pod, entry)
	if errors.Is(err, resourceclaim.ErrClaimNotFound) || err == nil && name == nil {
		return nil // the status that names it brings the pod back
	}
	if err != nil {
		return err
	}
	claim, err := c.claims.ResourceClaims(pod.Namespace).Get(*name)
	if apierrors.IsNotFound(err) {
		return nil // its event brings the pod back
	}
	if err != nil {
		return err
	}
	if mustOwn {
		if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
			return err
		}
	}
	if claim.Status.Allocation == nil || resourceclaim.IsReservedForPod(pod, claim, false) {
		return nil
	}
	claim = claim.DeepCopy()
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	_, err = c.env.Client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}
