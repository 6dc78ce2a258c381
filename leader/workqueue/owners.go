package workqueue

import (
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Dependent is a pointer to something that a controller may own.
type Dependent[T any] interface {
	*T
	metav1.Object
}

// Owners returns the keys of the objects of the kind that a change of a dependent concerns: those that control it or did before,
// each once. orphan tells whether others may adopt it, because no object controls it and it is new, was released or has other
// labels.
func Owners[T any, P Dependent[T]](kind schema.GroupVersionKind, old, now P) (keys []Key, orphan bool) {
	for _, o := range Either((*T)(old), (*T)(now)) {
		if k, ok := ControllerKey(P(o), kind.GroupVersion().String(), kind.Kind); ok && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if now == nil || metav1.GetControllerOfNoCopy(now) != nil || now.GetDeletionTimestamp() != nil {
		return keys, false
	}
	return keys, old == nil || len(keys) > 0 || !reflect.DeepEqual(old.GetLabels(), now.GetLabels())
}

// Adopters calls add for each owner that selects the orphan. An empty selector selects nothing, and neither does one
// that is malformed.
func Adopters[O metav1.Object](owners []O, selector func(O) *metav1.LabelSelector, orphan metav1.Object, add func(O)) {
	for _, o := range owners {
		s, err := metav1.LabelSelectorAsSelector(selector(o))
		if err == nil && !s.Empty() && s.Matches(labels.Set(orphan.GetLabels())) {
			add(o)
		}
	}
}
