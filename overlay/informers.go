package overlay

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// pageSize is how many objects a list asks for at once: few requests for many Services, and an answer of one or two MB.
const pageSize = 2000

// NewInformers returns informers with a low cost for many objects. They list existing objects, and drop the managed fields,
// which only writers need and which are as large as the rest of an EndpointSlice. So their objects must not be written
// back.
func NewInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(listing{client}, 0, informers.WithTransform(withoutManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if o.Limit > 0 {
				o.Limit = pageSize
			}
		}))
}

// listing is a client whose informers list first and watch from there. Existing objects as events of a watch (KEP-3157)
// cost the server four times and the client one and a half times as much, because each object is a separate message.
type listing struct{ kubernetes.Interface }

// IsWatchListSemanticsUnSupported implements the interface that client-go's reflectors look for.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }

func withoutManagedFields(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
}
