package openapi

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/builder3"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Types is the schema that server-side apply and managedFields need, made at the first write. It implements
// managedfields.TypeConverter. Safe for concurrent use.
type Types struct {
	docs  *Documents
	names func() ([]string, error)

	mu    sync.Mutex
	built managedfields.TypeConverter
}

var _ managedfields.TypeConverter = (*Types)(nil)

// Types returns the schema of the types that names returns, by their canonical Go names; it is asked once.
func (d *Documents) Types(names func() ([]string, error)) *Types {
	return &Types{docs: d, names: names}
}

func (t *Types) converter() (managedfields.TypeConverter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.built != nil {
		return t.built, nil
	}
	names, err := t.names()
	if err != nil {
		return nil, err
	}
	converter, err := t.docs.typeConverter(names)
	if err != nil {
		return nil, fmt.Errorf("field schemas: %w", err)
	}
	t.built, t.names = converter, nil
	return converter, nil
}

// typeConverter makes a converter of the named types and of what they refer to. It holds mu to the end: schemas that are
// built one after the other share parts, which the builder changes.
func (d *Documents) typeConverter(names []string) (managedfields.TypeConverter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.touch()
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(d.config3(), names...)
	if err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(schemas, false)
}

// ObjectToTyped implements managedfields.TypeConverter.
func (t *Types) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	c, err := t.converter()
	if err != nil {
		return nil, err
	}
	return c.ObjectToTyped(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter.
func (t *Types) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	c, err := t.converter()
	if err != nil {
		return nil, err
	}
	return c.TypedToObject(v)
}
