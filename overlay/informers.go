package overlay

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// pageSize is how many objects a list asks for at once: few requests for many Services, and an answer of one or two MB.
const pageSize = 2000

// NewInformers makes informers that learn of many objects at little cost: they list what there is, and drop what only writers
// need, the managed fields, which are as large as the rest of an EndpointSlice. They are for reading.
func NewInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(listing{client}, 0, informers.WithTransform(withoutManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if o.Limit > 0 {
				o.Limit = pageSize
			}
		}))
}

// listing is a client whose informers list first and watch from there. What there is as events of a watch (KEP-3157) costs
// the server four times and the client half as much again: each object comes as a message of its own.
type listing struct{ kubernetes.Interface }

// IsWatchListSemanticsUnSupported is what client-go's reflectors ask for.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }

func withoutManagedFields(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
}
