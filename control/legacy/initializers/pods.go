package initializers

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper/qos"
)

// PodStrategy lets an initializer change a pod as if it created the pod: it may add containers, volumes and everything
// that a new pod may have. An initialized pod can hardly be changed.
func PodStrategy(update rest.RESTUpdateStrategy, create rest.RESTCreateStrategy) rest.RESTUpdateStrategy {
	return podStrategy{update, create}
}

type podStrategy struct {
	rest.RESTUpdateStrategy
	create rest.RESTCreateStrategy
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s podStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	if pod, before, ok := pods(obj, old); ok && Uninitialized(before) {
		pod.Status.QOSClass = qos.ComputePodQOS(pod)
	}
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s podStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if _, before, ok := pods(obj, old); ok && Uninitialized(before) {
		return s.create.Validate(ctx, obj)
	}
	return s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old)
}

func pods(obj, old runtime.Object) (pod, before *api.Pod, ok bool) {
	pod, ok = obj.(*api.Pod)
	before, was := old.(*api.Pod)
	return pod, before, ok && was
}
