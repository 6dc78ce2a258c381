package storage

import (
	"errors"
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/raftstore"
)

// defaultPrefix starts the keys of all objects, as in every Kubernetes cluster.
const defaultPrefix = "/registry"

// RESTConfig configures the storages of one server's registries.
type RESTConfig struct {
	Store *raftstore.Store
	// Factory gives each resource its codec and key prefix. If it is nil, every resource has Codec and the prefix
	// "<group>/<resource>". Custom resources need that; their handler replaces the codec.
	Factory serverstorage.StorageFactory
	Codec   runtime.Codec
	// Stored is the version to which Codec writes, for the storage version hash in discovery; nil leaves the hash out.
	// A Factory knows the version itself.
	Stored runtime.GroupVersioner
	// Prefix starts every key. If it is empty, the factory's prefix is used, or else "/registry".
	Prefix string
	// Transformer returns the transformer of a resource, nil for none. The function itself may be nil.
	Transformer func(schema.GroupResource) value.Transformer
	// Memos bounds the decoded objects that are kept. Nil makes one for all resources of this getter.
	Memos *Memos
	// DeleteCollectionWorkers is how many items of one DELETE of a collection are deleted at the same time; 0 means 1.
	DeleteCollectionWorkers int
}

// Validate reports every fault of the configuration at once.
func (c RESTConfig) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("no store"))
	}
	if c.Factory == nil && c.Codec == nil {
		errs = append(errs, errors.New("neither a storage factory nor a codec"))
	}
	if c.DeleteCollectionWorkers < 0 {
		errs = append(errs, fmt.Errorf("%d workers to delete a collection", c.DeleteCollectionWorkers))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("storage options: %w", err)
	}
	return nil
}

// RESTOptions returns the options with which registries keep their objects in c.Store. GetRESTOptions reports the
// faults of c. No object count is polled.
func RESTOptions(c RESTConfig) generic.RESTOptionsGetter {
	if c.Memos == nil {
		c.Memos = NewMemos(DefaultMemoBytes)
	}
	if c.DeleteCollectionWorkers == 0 {
		c.DeleteCollectionWorkers = 1
	}
	return restOptions{c}
}

type restOptions struct{ RESTConfig }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o restOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	if err := o.Validate(); err != nil {
		return generic.RESTOptions{}, err
	}
	config, prefix, err := o.backend(resource, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage of %s: %w", resource, err)
	}
	if o.Prefix != "" {
		config.Prefix = o.Prefix
	}
	if config.Prefix == "" {
		config.Prefix = defaultPrefix
	}
	if o.Transformer != nil {
		config.Transformer = o.Transformer(resource)
	}
	return generic.RESTOptions{
		StorageConfig:           config,
		Decorator:               o.decorate,
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: o.DeleteCollectionWorkers,
		ResourcePrefix:          prefix,
	}, nil
}

// backend returns a resource's key prefix and a storage configuration with its codec.
func (o restOptions) backend(resource schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, string, error) {
	if o.Factory == nil {
		config := storagebackend.NewDefaultConfig(o.Prefix, o.Codec)
		config.EncodeVersioner = o.Stored
		return config.ForResource(resource), path.Join(resource.Group, resource.Resource), nil
	}
	config, err := o.Factory.NewConfig(resource, example)
	if err != nil {
		return nil, "", err
	}
	return config, o.Factory.ResourcePrefix(resource), nil
}

// decorate is the generic.StorageDecorator. It returns the storage without a cache around it, and nothing to destroy.
func (o restOptions) decorate(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	_ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	_ storage.AttrFunc,
	_ storage.IndexerFuncs,
	_ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	c := Config{
		Store:          o.Store,
		Codec:          config.Codec,
		NewFunc:        newFunc,
		NewListFunc:    newListFunc,
		Prefix:         config.Prefix,
		ResourcePrefix: resourcePrefix,
		GroupResource:  config.GroupResource,
		Transformer:    config.Transformer,
		Memos:          o.Memos,
	}
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	return New(c), func() {}, nil
}
