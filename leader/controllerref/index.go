package controllerref

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

const byController = "balsa/controller"

// Index makes the informer findable by controlling owner. It may be asked for by several controllers before the informer
// starts; the index is made once.
func Index(informer cache.SharedIndexInformer) error {
	if _, ok := informer.GetIndexer().GetIndexers()[byController]; ok {
		return nil
	}
	err := informer.AddIndexers(cache.Indexers{byController: func(o any) ([]string, error) {
		obj, ok := o.(metav1.Object)
		if !ok {
			return nil, nil
		}
		if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return []string{orphansOf(obj.GetNamespace())}, nil
	}})
	if err != nil {
		return fmt.Errorf("indexing by owner: %w", err)
	}
	return nil
}

func orphansOf(namespace string) string { return "orphans/" + namespace }

// Of lists the objects owner controls. Objects are shared with the cache: read only.
func Of[T any](indexer cache.Indexer, owner metav1.Object) []T {
	return byIndex[T](indexer, string(owner.GetUID()))
}

// Orphans lists the objects of a namespace without a controller.
func Orphans[T any](indexer cache.Indexer, namespace string) []T {
	return byIndex[T](indexer, orphansOf(namespace))
}

// Candidates lists the objects that Claim has to check for owner: those that it controls, and those without a controller.
func Candidates[T any](indexer cache.Indexer, owner metav1.Object) []T {
	return append(Of[T](indexer, owner), Orphans[T](indexer, owner.GetNamespace())...)
}

func byIndex[T any](indexer cache.Indexer, value string) []T {
	objs, err := indexer.ByIndex(byController, value)
	if err != nil { // only when Index was not called
		panic(err)
	}
	out := make([]T, 0, len(objs))
	for _, o := range objs {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}
