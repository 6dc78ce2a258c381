package workqueue

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Strip is the transform of every informer: managed fields are most of an object's weight and no controller reads them.
func Strip(o any) (any, error) {
	if m, ok := o.(interface {
		SetManagedFields([]metav1.ManagedFieldsEntry)
	}); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}
