package workqueue

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Newest returns now, or old when the object is gone: the version that still tells labels and owners.
func Newest[T any](old, now *T) *T {
	if now != nil {
		return now
	}
	return old
}

// Either returns the versions of a change that exist, oldest first.
func Either[T any](old, now *T) []*T {
	switch {
	case old == nil:
		return []*T{now}
	case now == nil:
		return []*T{old}
	}
	return []*T{old, now}
}

// ControllerKey is the key of the object that controls o, when its kind is the one given.
func ControllerKey(o metav1.Object, apiGroupVersion, kind string) (Key, bool) {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil || ref.Kind != kind || ref.APIVersion != apiGroupVersion {
		return Key{}, false
	}
	return Key{Namespace: o.GetNamespace(), Name: ref.Name}, true
}
