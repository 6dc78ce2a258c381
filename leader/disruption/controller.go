package disruption

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/scaling"
	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env         workqueue.Env
	budgets     policylisters.PodDisruptionBudgetLister
	pods        corelisters.PodLister
	replicaSets appslisters.ReplicaSetLister
	scales      *scaling.Client
	loop        *workqueue.Loop[workqueue.Key]
}

// New returns the controller of PodDisruptionBudgets.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	scales, err := scaling.New(env.Rest)
	if err != nil {
		return nil, err
	}
	budgets, core := env.Informers.Policy().V1().PodDisruptionBudgets(), env.Informers.Core().V1()
	sets := env.Informers.Apps().V1().ReplicaSets()
	c := &controller{env: env, budgets: budgets.Lister(), pods: core.Pods().Lister(), replicaSets: sets.Lister(), scales: scales}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	workqueue.Need(c.loop, sets.Informer())
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, budgets.Informer(), func(old, now *policy.PodDisruptionBudget) {
			c.loop.Add(workqueue.KeyOf(workqueue.Newest(old, now)))
		}),
		workqueue.Watch(c.loop, core.Pods().Informer(), c.podChanged),
	)
}

func (c *controller) podChanged(old, now *v1.Pod) {
	if old != nil && now != nil && pods.Ready(old) == pods.Ready(now) && (old.DeletionTimestamp == nil) == (now.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(old.Labels, now.Labels) && equality.Semantic.DeepEqual(old.OwnerReferences, now.OwnerReferences) {
		return
	}
	all, err := c.budgets.PodDisruptionBudgets(workqueue.Newest(old, now).Namespace).List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	for _, b := range all {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue
		}
		for _, p := range workqueue.Either(old, now) {
			if selector.Matches(labels.Set(p.Labels)) {
				c.loop.Add(workqueue.KeyOf(b))
			}
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key workqueue.Key) error {
	b, err := c.budgets.PodDisruptionBudgets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return nil // validation forbids it
	}
	matching, err := c.pods.Pods(key.Namespace).List(selector)
	if err != nil {
		return err
	}
	scale := int32(0)
	if needsScale(b) {
		if scale, err = c.scale(ctx, b, matching); err != nil {
			return errors.Join(err, c.failSafe(ctx, b, err))
		}
	}
	expected, desired, err := goal(b, int32(len(matching)), scale)
	if err != nil {
		return errors.Join(err, c.failSafe(ctx, b, err))
	}
	evicted, next := underWay(b, matching, time.Now())
	if next > 0 {
		c.loop.AddAfter(key, next)
	}
	healthy := countHealthy(matching, evicted)
	status := *b.Status.DeepCopy()
	status.ObservedGeneration, status.ExpectedPods, status.DesiredHealthy, status.CurrentHealthy = b.Generation, expected, desired, healthy
	status.DisruptionsAllowed, status.DisruptedPods = allowed(expected, desired, healthy), evicted
	return c.write(ctx, b, status)
}

func (c *controller) write(ctx context.Context, b *policy.PodDisruptionBudget, status policy.PodDisruptionBudgetStatus) error {
	now := b.DeepCopy()
	now.Status = status
	pdbhelper.UpdateDisruptionAllowedCondition(now)
	if equality.Semantic.DeepEqual(b.Status, now.Status) {
		return nil
	}
	_, err := c.env.Client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// failSafe allows no disruption while the budget cannot be computed.
func (c *controller) failSafe(ctx context.Context, b *policy.PodDisruptionBudget, why error) error {
	c.env.Events.Eventf(reference(b), v1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", why)
	now := b.DeepCopy()
	now.Status.DisruptionsAllowed = 0
	now.Status.ObservedGeneration = b.Generation
	c1 := metav1.Condition{Type: policy.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policy.SyncFailedReason, Message: why.Error(), ObservedGeneration: b.Generation, LastTransitionTime: metav1.Now()}
	kept := now.Status.Conditions[:0]
	for _, have := range now.Status.Conditions {
		if have.Type != c1.Type {
			kept = append(kept, have)
		} else if have.Status == c1.Status && have.Reason == c1.Reason && have.Message == c1.Message {
			return nil
		}
	}
	now.Status.Conditions = append(kept, c1)
	_, err := c.env.Client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	return err
}

// scale adds up what the distinct owners of the pods ask for. A ReplicaSet under a Deployment counts as the Deployment.
func (c *controller) scale(ctx context.Context, b *policy.PodDisruptionBudget, matching []*v1.Pod) (int32, error) {
	asked := map[types.UID]bool{}
	unmanaged := false
	total := int32(0)
	for _, p := range matching {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			unmanaged = true
			continue
		}
		if ref.Kind == "ReplicaSet" {
			if set, err := c.replicaSets.ReplicaSets(p.Namespace).Get(ref.Name); err == nil && set.UID == ref.UID {
				if top := metav1.GetControllerOfNoCopy(set); top != nil {
					ref = top
				}
			}
		}
		if asked[ref.UID] {
			continue
		}
		asked[ref.UID] = true
		s, _, err := c.scales.Get(ctx, p.Namespace, ref.APIVersion, ref.Kind, ref.Name)
		if apierrors.IsNotFound(err) {
			continue // its pods will be gone soon
		}
		if err != nil {
			return 0, fmt.Errorf("%s %s/%s: %w", ref.Kind, p.Namespace, ref.Name, err)
		}
		total += s.Spec.Replicas
	}
	if unmanaged {
		c.env.Events.Eventf(reference(b), v1.EventTypeWarning, "UnmanagedPods", "Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.", b.Spec.Selector)
	}
	return total, nil
}

func reference(b *policy.PodDisruptionBudget) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: policy.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion}
}
