package rest

import (
	"context"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
)

// Components serves componentstatuses: the parts of this process and their health.
type Components struct {
	health map[string]func(context.Context) error
	rest.TableConvertor
}

var (
	_ rest.Lister               = (*Components)(nil)
	_ rest.Getter               = (*Components)(nil)
	_ rest.Scoper               = (*Components)(nil)
	_ rest.SingularNameProvider = (*Components)(nil)
)

func newComponents(health map[string]func(context.Context) error) *Components {
	return &Components{health: health,
		TableConvertor: printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}}
}

// New implements rest.Storage.
func (c *Components) New() runtime.Object { return &api.ComponentStatus{} }

// NewList implements rest.Lister.
func (c *Components) NewList() runtime.Object { return &api.ComponentStatusList{} }

// Destroy implements rest.Storage.
func (c *Components) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (c *Components) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (c *Components) GetSingularName() string { return "componentstatus" }

// ShortNames implements rest.ShortNamesProvider.
func (c *Components) ShortNames() []string { return []string{"cs"} }

// List checks every component.
func (c *Components) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	byLabel, byField := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		byLabel = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		byField = options.FieldSelector
	}
	list := &api.ComponentStatusList{}
	for _, name := range slices.Sorted(maps.Keys(c.health)) {
		if byLabel.Matches(labels.Set{}) && byField.Matches(fields.Set{"metadata.name": name}) {
			list.Items = append(list.Items, *c.check(ctx, name))
		}
	}
	return list, nil
}

// Get checks one component.
func (c *Components) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if c.health[name] == nil {
		return nil, apierrors.NewNotFound(api.Resource("componentstatus"), name)
	}
	return c.check(ctx, name), nil
}

func (c *Components) check(ctx context.Context, name string) *api.ComponentStatus {
	condition := api.ComponentCondition{Type: api.ComponentHealthy, Status: api.ConditionTrue, Message: "ok"}
	if err := c.health[name](ctx); err != nil {
		condition.Status, condition.Message, condition.Error = api.ConditionFalse, "", err.Error()
	}
	return &api.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []api.ComponentCondition{condition}}
}
