package openapi

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/builder3"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Types holds the schema for server-side apply and managedFields. The first write builds it. It implements
// managedfields.TypeConverter and is safe for concurrent use.
type Types struct {
	docs  *Documents
	names func() ([]string, error)

	mu    sync.Mutex
	built managedfields.TypeConverter
}

var _ managedfields.TypeConverter = (*Types)(nil)

// Types returns the schema of the types that names returns, as canonical Go names. names is called once.
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

// typeConverter returns a converter of the named types and the types they refer to. It holds mu until it returns,
// because schemas that are built one after the other share parts that the builder changes.
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
