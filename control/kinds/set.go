package kinds

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// Deps are what the strategies need beside the object.
type Deps struct {
	// RESTOptions gives each kind its storage.
	RESTOptions generic.RESTOptionsGetter
	// Authorizer answers whether the client has a right that the object would use.
	Authorizer authorizer.Authorizer
	// Rules resolves role references, for the escalation checks on RBAC objects.
	Rules rbacvalidation.AuthorizationRuleResolver
	// Resources resolves the parameter kinds of admission policies.
	Resources resolver.ResourceResolver
	// Namespaces reads the namespace of a resource claim.
	Namespaces corev1client.NamespaceInterface
}

// Validate reports every missing field.
func (d Deps) Validate() error {
	var errs []error
	for name, missing := range map[string]bool{
		"RESTOptions": d.RESTOptions == nil, "Authorizer": d.Authorizer == nil, "Rules": d.Rules == nil,
		"Resources": d.Resources == nil, "Namespaces": d.Namespaces == nil,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("kinds: Deps.%s must be set", name))
		}
	}
	return errors.Join(errs...)
}

// Set holds the REST storage of every row.
type Set struct {
	Deps   Deps
	rows   []Row
	stores map[schema.GroupResource]*genericregistry.Store
	views  map[schema.GroupResource]map[string]*genericregistry.Store
	served map[schema.GroupVersion]map[string]rest.Storage
}

// Build returns the storage of all rows.
func Build(deps Deps) (*Set, error) {
	if err := deps.Validate(); err != nil {
		return nil, err
	}
	s := &Set{
		Deps:   deps,
		stores: map[schema.GroupResource]*genericregistry.Store{},
		views:  map[schema.GroupResource]map[string]*genericregistry.Store{},
		served: map[schema.GroupVersion]map[string]rest.Storage{},
	}
	s.rows = s.table()
	// One table converter serves every kind: it finds the printer by the object's type.
	columns := printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}
	for i := range s.rows {
		if err := s.build(&s.rows[i], columns); err != nil {
			return nil, fmt.Errorf("kinds: %s: %w", s.rows[i].GroupResource(), err)
		}
	}
	for i := range s.rows {
		s.serve(&s.rows[i])
	}
	return s, nil
}

// build makes the store of a row and of its views.
func (s *Set) build(r *Row, columns rest.TableConvertor) error {
	gr := r.GroupResource()
	store := &genericregistry.Store{
		NewFunc:                   r.Types.New,
		NewListFunc:               r.Types.NewList,
		DefaultQualifiedResource:  gr,
		SingularQualifiedResource: schema.GroupResource{Group: r.Group, Resource: r.Singular},
		CreateStrategy:            r.Strategy,
		UpdateStrategy:            r.Strategy,
		DeleteStrategy:            r.Strategy,
		ReturnDeletedObject:       r.ReturnDeleted,
		TableConvertor:            columns,
	}
	if r.PlainColumns {
		store.TableConvertor = rest.NewDefaultTableConvertor(gr)
	}
	store.ResetFieldsStrategy, _ = r.Strategy.(rest.ResetFieldsStrategy)
	if ttl := r.TTL; ttl > 0 {
		store.TTLFunc = ttlFunc(ttl)
	}
	options := &generic.StoreOptions{RESTOptions: s.Deps.RESTOptions, AttrFunc: r.Attrs, TriggerFunc: r.Triggers}
	if r.Indexers != nil {
		options.Indexers = r.Indexers()
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return err
	}
	if r.Hook != nil {
		r.Hook(store)
	}
	s.stores[gr] = store
	for name, strategy := range r.Views {
		v := *store
		v.UpdateStrategy = strategy
		v.ResetFieldsStrategy, _ = strategy.(rest.ResetFieldsStrategy)
		if s.views[gr] == nil {
			s.views[gr] = map[string]*genericregistry.Store{}
		}
		s.views[gr][name] = &v
	}
	return nil
}

// serve adds the row's endpoints to each version that serves it.
func (s *Set) serve(r *Row) {
	gr := r.GroupResource()
	e := Endpoint{Store: s.stores[gr], Short: r.Short}
	if r.Category != "" {
		e.InCategory = []string{r.Category}
	}
	var kind rest.Storage = e
	if r.Wrap != nil {
		kind = r.Wrap(e, s)
	}
	enter := func(group string, versions []string) {
		for _, version := range versions {
			gv := schema.GroupVersion{Group: group, Version: version}
			s.Add(gv, r.Resource, kind)
			for name, store := range s.views[gr] {
				if name == r.WriteOnly {
					s.Add(gv, r.Resource+"/"+name, updater{store})
				} else {
					s.Add(gv, r.Resource+"/"+name, view{updater{store}})
				}
			}
		}
	}
	enter(r.Group, r.Versions)
	for group, versions := range r.AlsoIn {
		enter(group, versions)
	}
}

// Add adds or replaces an endpoint; path is "resource" or "resource/subresource".
func (s *Set) Add(gv schema.GroupVersion, path string, storage rest.Storage) {
	if s.served[gv] == nil {
		s.served[gv] = map[string]rest.Storage{}
	}
	s.served[gv][path] = storage
}

// Store returns the store of a kind, nil if there is no such row. It is for subresources that do more than write a
// view.
func (s *Set) Store(group, resource string) *genericregistry.Store {
	return s.stores[schema.GroupResource{Group: group, Resource: resource}]
}

// View returns the store of a view ("status"), nil if the row has none.
func (s *Set) View(group, resource, name string) *genericregistry.Store {
	return s.views[schema.GroupResource{Group: group, Resource: resource}][name]
}

// Served returns the endpoints of one group version by path.
func (s *Set) Served(gv schema.GroupVersion) map[string]rest.Storage { return s.served[gv] }

// Versions returns the versions of group that have endpoints, preferred first.
func (s *Set) Versions(group Group) []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, v := range group.Versions {
		gv := schema.GroupVersion{Group: group.Name, Version: v}
		if len(s.served[gv]) > 0 {
			out = append(out, gv)
		}
	}
	return out
}

// Destroy releases the resources of all stores.
func (s *Set) Destroy() {
	for _, store := range s.stores {
		store.Destroy()
	}
}

// Each calls fn with every stored kind, in each group version that serves it.
func (s *Set) Each(fn func(r *Row, served schema.GroupVersion, store *genericregistry.Store)) {
	for i := range s.rows {
		r := &s.rows[i]
		for _, version := range r.Versions {
			fn(r, schema.GroupVersion{Group: r.Group, Version: version}, s.stores[r.GroupResource()])
		}
	}
}
