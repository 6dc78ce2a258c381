package controllerref

import (
	"errors"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/balsahq/balsa/fault"
)

// FromTemplate builds a pod of the template that owner controls. The name is generated from the owner's.
func FromTemplate(t *v1.PodTemplateSpec, owner metav1.Object, kind schema.GroupVersionKind) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       owner.GetNamespace(),
			GenerateName:    generateName(owner.GetName()),
			Labels:          maps.Clone(t.Labels),
			Annotations:     maps.Clone(t.Annotations),
			Finalizers:      slices.Clone(t.Finalizers),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Spec: *t.Spec.DeepCopy(),
	}
}

// generateName prefixes generated names with the owner's, and a dash where that is still a valid name of a pod.
func generateName(owner string) string {
	if len(validation.IsDNS1123Subdomain(owner+"-x")) != 0 {
		return owner
	}
	return owner + "-"
}

// SlowStart calls do for 0 ≤ i < n in batches of 1, 2, 4, …; the calls of a batch run at once. It stops after the first
// batch with an error, so that a quota or an admission plugin that refuses them all is asked a few times, not n times.
// It returns how many calls succeeded and the errors of the last batch.
func SlowStart(n int, do func(i int) error) (int, error) {
	done := 0
	for batch := 1; done < n; batch *= 2 {
		size := min(batch, n-done)
		errs := make([]error, size)
		var wg sync.WaitGroup
		for i := range size {
			wg.Go(func() { errs[i] = fault.Contain("controller", func() error { return do(done + i) }) })
		}
		wg.Wait()
		good := 0
		for _, err := range errs {
			if err == nil {
				good++
			}
		}
		done += good
		if good < size {
			return done, errors.Join(errs...)
		}
	}
	return done, nil
}

// Parallel calls do for 0 ≤ i < n, all at once, and returns the errors joined.
func Parallel(n int, do func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fault.Contain("controller", func() error { return do(i) }) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// NamespaceEnding reports whether the API refused a creation because the namespace is on its way out. There is nothing
// to retry then: what the owner wants will be deleted with it.
func NamespaceEnding(err error) bool {
	return apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause)
}
