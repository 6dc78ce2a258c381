package kinds

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
)

// Strategy is implemented by upstream's strategy of each stored kind.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// Row describes one stored kind.
type Row struct {
	Group    string
	Versions []string // served versions, preferred first
	Resource string   // plural, as in the URL
	Singular string
	Short    []string
	Category string // "all" or "api-extensions"; kubectl get CATEGORY

	Types    Types
	Strategy Strategy

	// Views are subresources that read the whole object and write the part that their strategy allows.
	Views map[string]rest.RESTUpdateStrategy
	// WriteOnly names the views that cannot be read (namespaces/finalize).
	WriteOnly string

	Attrs    storage.AttrFunc // fields for field selectors; nil: metadata only
	Triggers storage.IndexerFuncs
	Indexers func() *cache.Indexers

	ReturnDeleted bool   // DELETE answers with the object instead of a Status
	PlainColumns  bool   // only NAME and AGE
	TTL           uint64 // seconds from an object's last write to its deletion; 0: never

	// AlsoIn are other groups that serve the same objects, each with its versions (events).
	AlsoIn map[string][]string

	// Hook changes the complete store, before views copy it.
	Hook func(*genericregistry.Store)
	// Wrap replaces the kind's own REST endpoint; e already has its names and categories.
	Wrap func(e Endpoint, set *Set) rest.Storage
}

// GroupResource returns the kind's group and resource, under which its objects are stored.
func (r *Row) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// Types holds the constructors of a kind's empty internal object and list.
type Types struct {
	New, NewList func() runtime.Object
}

type object[T any] interface {
	*T
	runtime.Object
}

// typesOf returns the Types of the object T and the list L.
func typesOf[T, L any, PT object[T], PL object[L]]() Types {
	return Types{
		New:     func() runtime.Object { return PT(new(T)) },
		NewList: func() runtime.Object { return PL(new(L)) },
	}
}

// status is the usual set of views.
func status(s rest.RESTUpdateStrategy) map[string]rest.RESTUpdateStrategy {
	return map[string]rest.RESTUpdateStrategy{"status": s}
}
