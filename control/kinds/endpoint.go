package kinds

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Endpoint is the REST storage of a kind: its store, and the names discovery shows.
type Endpoint struct {
	*genericregistry.Store
	Short      []string
	InCategory []string
}

var (
	_ rest.StandardStorage    = Endpoint{}
	_ rest.ShortNamesProvider = Endpoint{}
	_ rest.CategoriesProvider = Endpoint{}
)

// ShortNames implements rest.ShortNamesProvider.
func (e Endpoint) ShortNames() []string { return e.Short }

// Categories implements rest.CategoriesProvider.
func (e Endpoint) Categories() []string { return e.InCategory }

// updater is a view that can be written but not read.
type updater struct{ store *genericregistry.Store }

// New implements rest.Storage.
func (u updater) New() runtime.Object { return u.store.New() }

// Destroy does nothing: the store belongs to the kind.
func (u updater) Destroy() {}

// Update writes the part of the object that the view's strategy allows. A view never creates an object.
func (u updater) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return u.store.Update(ctx, name, info, create, update, false, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (u updater) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return u.store.GetResetFields()
}

// view is a subresource that reads the object and writes part of it.
type view struct{ updater }

var _ rest.Patcher = view{}

// Get implements rest.Getter, which PATCH needs.
func (v view) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return v.store.Get(ctx, name, options)
}

// ConvertToTable implements rest.TableConvertor.
func (v view) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return v.store.ConvertToTable(ctx, obj, options)
}
