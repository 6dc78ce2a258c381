package rest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/util/retry"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/utils/ptr"
)

// maxDisruptedPods bounds the evictions of one budget that its controller has not confirmed yet.
const maxDisruptedPods = 2000

// evictionRetry is the back-off after a conflict with another writer.
var evictionRetry = wait.Backoff{Steps: 20, Duration: 20 * time.Millisecond, Factor: 1.1, Jitter: 0.1}

// Eviction serves pods/eviction: a deletion that the pod's disruption budget has to allow.
type Eviction struct {
	pods, podStatus *genericregistry.Store
	budgets         *genericregistry.Store // nil: the cluster has no budgets
	budgetStatus    *genericregistry.Store
}

var (
	_ rest.NamedCreater             = (*Eviction)(nil)
	_ rest.GroupVersionKindProvider = (*Eviction)(nil)
)

func newEviction(t Table) *Eviction {
	return &Eviction{pods: t.Store("", "pods"), podStatus: t.View("", "pods", "status"),
		budgets: t.Store("policy", "poddisruptionbudgets"), budgetStatus: t.View("policy", "poddisruptionbudgets", "status")}
}

// New implements rest.Storage.
func (e *Eviction) New() runtime.Object { return &policy.Eviction{} }

// Destroy implements rest.Storage.
func (e *Eviction) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider: evictions are policy/v1 below core/v1.
func (e *Eviction) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion lets clients of policy/v1beta1 evict as well.
func (e *Eviction) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion || gv == schema.GroupVersion{Group: "policy", Version: "v1beta1"}
}

// Create evicts the pod. It answers 429 if the budget does not allow it now.
func (e *Eviction) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	eviction, ok := obj.(*policy.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if name != eviction.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	opts, err := deleteOptions(eviction, options)
	if err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, eviction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	pod, done, err := e.evictWithoutBudget(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	if !done {
		if failure, err := e.evictWithinBudget(ctx, pod, opts); err != nil || failure != nil {
			return failureOrNil(failure), err
		}
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func failureOrNil(s *metav1.Status) runtime.Object {
	if s == nil {
		return nil
	}
	return s
}

func deleteOptions(e *policy.Eviction, options *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	switch o := e.DeleteOptions; {
	case o == nil:
		return &metav1.DeleteOptions{DryRun: options.DryRun}, nil
	case ptr.Deref(o.IgnoreStoreReadErrorWithClusterBreakingPotential, false):
		path := field.NewPath("deleteOptions").Child("ignoreStoreReadErrorWithClusterBreakingPotential")
		return nil, apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), e.Name,
			field.ErrorList{field.Invalid(path, true, "can not be set for pod eviction, try after removing the option")})
	case len(o.DryRun) == 0:
		o.DryRun = options.DryRun
	case len(options.DryRun) != 0 && !slices.Equal(o.DryRun, options.DryRun):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Non-matching dry-run options in request and content: %v and %v", options.DryRun, o.DryRun))
	}
	return e.DeleteOptions, nil
}

func versionAsked(o *metav1.DeleteOptions) bool {
	return o.Preconditions != nil && o.Preconditions.ResourceVersion != nil
}

func atVersion(o *metav1.DeleteOptions, version string) *metav1.DeleteOptions {
	o = o.DeepCopy()
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	o.Preconditions.ResourceVersion = &version
	return o
}

// finished reports whether the pod has ended or is being deleted, so that its eviction disrupts nothing; the same holds
// for a pod that is still pending.
func finished(p *api.Pod) bool {
	return p.Status.Phase == api.PodSucceeded || p.Status.Phase == api.PodFailed || p.DeletionTimestamp != nil
}

// evictWithoutBudget deletes the pod if no budget can object. done is false if a budget has to be asked.
func (e *Eviction) evictWithoutBudget(ctx context.Context, name string, opts *metav1.DeleteOptions) (pod *api.Pod, done bool, err error) {
	again := apierrors.IsConflict
	if versionAsked(opts) {
		again = func(error) bool { return false }
	}
	err = retry.OnError(evictionRetry, again, func() error {
		obj, err := e.pods.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod = obj.(*api.Pod)
		if !finished(pod) && pod.Status.Phase != api.PodPending {
			return nil
		}
		o := opts
		if !finished(pod) && !versionAsked(opts) {
			o = atVersion(opts, pod.ResourceVersion) // the pod must not become ready between this read and the deletion
		}
		if err := e.deletePod(ctx, name, o); err != nil {
			return err
		}
		done = true
		return nil
	})
	return pod, done, err
}

// evictWithinBudget asks the budget, counts the disruption, and deletes the pod. failure is a final answer, err may be
// retried.
func (e *Eviction) evictWithinBudget(ctx context.Context, pod *api.Pod, opts *metav1.DeleteOptions) (failure *metav1.Status, err error) {
	budgets, err := e.budgetsOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	if len(budgets) > 1 {
		return &metav1.Status{Status: metav1.StatusFailure, Code: 500,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}, nil
	}
	o := opts
	if len(budgets) == 1 {
		if unhealthyMayBeEvicted(pod, budgets[0]) {
			o = atVersion(opts, pod.ResourceVersion)
		} else if err := e.countDisruption(ctx, pod, budgets[0].Name, dryrun.IsDryRun(opts.DryRun)); err != nil {
			return nil, err
		}
	}
	err = e.deletePod(ctx, pod.Name, o)
	if apierrors.IsConflict(err) && o != opts && !versionAsked(opts) {
		return nil, tooManyRequests(budgets[0].Name)
	}
	return nil, err
}

// unhealthyMayBeEvicted reports whether the budget allows the eviction of a pod that is not ready.
func unhealthyMayBeEvicted(pod *api.Pod, b *policy.PodDisruptionBudget) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == api.PodReady && c.Status == api.ConditionTrue {
			return false
		}
	}
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policy.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

func (e *Eviction) budgetsOf(ctx context.Context, pod *api.Pod) ([]*policy.PodDisruptionBudget, error) {
	if e.budgets == nil {
		return nil, nil
	}
	obj, err := e.budgets.List(ctx, &metainternalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	list, ok := obj.(*policy.PodDisruptionBudgetList)
	if !ok {
		return nil, fmt.Errorf("%T is not a list of budgets", obj)
	}
	var out []*policy.PodDisruptionBudget
	for i := range list.Items {
		b := &list.Items[i]
		sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && b.Namespace == pod.Namespace && sel.Matches(labels.Set(pod.Labels)) {
			out = append(out, b)
		}
	}
	return out, nil
}

// countDisruption takes one disruption off the budget, provided that the budget has not changed since it allowed it.
func (e *Eviction) countDisruption(ctx context.Context, pod *api.Pod, budget string, dryRun bool) error {
	if dryRun {
		obj, err := e.budgets.Get(ctx, budget, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		return allowDisruption(obj.DeepCopyObject().(*policy.PodDisruptionBudget), pod.Name, time.Now())
	}
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		b := old.DeepCopyObject().(*policy.PodDisruptionBudget)
		return b, allowDisruption(b, pod.Name, time.Now())
	})
	err := retry.RetryOnConflict(evictionRetry, func() error {
		_, _, err := e.budgetStatus.Update(ctx, budget, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	})
	if wait.Interrupted(err) || apierrors.IsConflict(err) {
		return apierrors.NewTimeoutError(fmt.Sprintf("couldn't update PodDisruptionBudget %q due to conflicts", budget), 10)
	}
	return err
}

// allowDisruption decides whether one more pod may be evicted, and counts it in the budget's status.
func allowDisruption(b *policy.PodDisruptionBudget, pod string, now time.Time) error {
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return tooManyRequests(b.Name)
	case b.Status.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(policy.Resource("poddisruptionbudget"), b.Name, errors.New("pdb disruptions allowed is negative"))
	case len(b.Status.DisruptedPods) > maxDisruptedPods:
		return apierrors.NewForbidden(policy.Resource("poddisruptionbudget"), b.Name,
			errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case b.Status.DisruptionsAllowed == 0:
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: denialMessage(b)})
		return err
	}
	b.Status.DisruptionsAllowed--
	if b.Status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason: policyv1.InsufficientPodsReason, ObservedGeneration: b.Status.ObservedGeneration})
	}
	if b.Status.DisruptedPods == nil {
		b.Status.DisruptedPods = map[string]metav1.Time{}
	}
	b.Status.DisruptedPods[pod] = metav1.Time{Time: now}
	return nil
}

func denialMessage(b *policy.PodDisruptionBudget) string {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	told := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch {
	case told && c.Reason == policyv1.SyncFailedReason:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", b.Name, c.Message)
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		return fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy)
	case told:
		return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", b.Name, c.Reason, c.Message)
	}
	return fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
}

func tooManyRequests(budget string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget)})
	return err
}

// deletePod writes the reason to the pod's status and deletes the pod.
func (e *Eviction) deletePod(ctx context.Context, name string, o *metav1.DeleteOptions) error {
	if !dryrun.IsDryRun(o.DryRun) {
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			pod := old.DeepCopyObject().(*api.Pod)
			if err := checkPreconditions(pod, o.Preconditions); err != nil {
				return nil, err
			}
			podutil.UpdatePodCondition(&pod.Status, &api.PodCondition{Type: api.DisruptionTarget, Status: api.ConditionTrue,
				Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"})
			return pod, nil
		})
		out, _, err := e.podStatus.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		if versionAsked(o) {
			o = atVersion(o, out.(*api.Pod).ResourceVersion) // the write above changed the version
		}
	}
	_, _, err := e.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, o)
	return err
}

func checkPreconditions(pod *api.Pod, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	gr := schema.GroupResource{Resource: "Pod"}
	if p.UID != nil && *p.UID != "" && *p.UID != pod.UID {
		return apierrors.NewConflict(gr, pod.Name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, pod.UID))
	}
	if v := p.ResourceVersion; v != nil && *v != "" && *v != pod.ResourceVersion {
		return apierrors.NewConflict(gr, pod.Name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *v, pod.ResourceVersion))
	}
	return nil
}
