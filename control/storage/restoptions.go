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

// defaultPrefix starts the keys of all objects, as in every cluster.
const defaultPrefix = "/registry"

// RESTConfig says how the registries of one server get their storage.
type RESTConfig struct {
	Store *raftstore.Store
	// Factory knows each resource's codec and key prefix. Without one Codec is
	// used for every resource and "<group>/<resource>" is the prefix, which is
	// what custom resources need (their handler puts in a codec of its own).
	Factory serverstorage.StorageFactory
	Codec   runtime.Codec
	// Stored says in which version Codec writes, for the hash of it in discovery;
	// nil leaves that out. The factory knows it by itself.
	Stored runtime.GroupVersioner
	// Prefix starts every key; empty means the factory's, or else "/registry".
	Prefix string
	// Transformer returns what is applied to a resource's bytes, nil for
	// nothing; the function may be nil.
	Transformer func(schema.GroupResource) value.Transformer
	// Memos bounds the decoded objects that are kept; nil makes one for all
	// resources of this getter.
	Memos *Memos
	// DeleteCollectionWorkers delete the items of one DELETE of a collection at
	// the same time; 0 means 1.
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

// RESTOptions gives registries their storage on c.Store. Faults of c are
// reported by GetRESTOptions. Objects are not counted by polling.
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

// backend returns a resource's codec, as part of a storage configuration, and
// its key prefix.
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

// decorate is the generic.StorageDecorator: it makes the storage itself, with
// no cache around it. There is nothing to destroy.
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
