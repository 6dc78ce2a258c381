package cloud

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Finalizer keeps a Service until its load balancer is released; it is upstream's
// (k8s.io/cloud-provider/service/helpers.LoadBalancerCleanupFinalizer).
const Finalizer = "service.kubernetes.io/load-balancer-cleanup"

// work is the work to do for a Service.
type work int

const (
	nothing work = iota
	serve
	release
)

func workFor(svc *v1.Service, lb LoadBalancers) work {
	taken := meta.FindStatusCondition(svc.Status.Conditions, lb.Condition()) != nil
	wants := svc.Spec.Type == v1.ServiceTypeLoadBalancer && svc.DeletionTimestamp == nil
	switch {
	case wants && lb.Serves(svc):
		return serve
	case taken:
		return release
	}
	return nothing
}

// settled returns the Service with the outcome in its status, or nil if it has it already.
func settled(svc *v1.Service, condition string, o Outcome) *v1.Service {
	now := svc.DeepCopy()
	if !slices.Contains(now.Finalizers, Finalizer) {
		now.Finalizers = append(now.Finalizers, Finalizer)
	}
	now.Status.LoadBalancer.Ingress = o.Ingress
	c := metav1.Condition{
		Type: condition, Status: metav1.ConditionTrue, Reason: o.Reason, ObservedGeneration: svc.Generation,
		Message: "The Service has the addresses it asks for.",
	}
	if o.Problem != nil {
		c.Status, c.Message = metav1.ConditionFalse, o.Problem.Error()
	}
	meta.SetStatusCondition(&now.Status.Conditions, c)
	if apiequality.Semantic.DeepEqual(svc, now) {
		return nil
	}
	return now
}

// released returns the Service without the controller's finalizer, status and condition.
func released(svc *v1.Service, condition string) *v1.Service {
	now := svc.DeepCopy()
	now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == Finalizer })
	now.Status.LoadBalancer = v1.LoadBalancerStatus{}
	meta.RemoveStatusCondition(&now.Status.Conditions, condition)
	return now
}
