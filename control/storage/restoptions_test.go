package storage

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/balsahq/balsa/raftstore"
)

// strategy accepts every namespaced object.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                            { return true }
func (strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string        { return nil }
func (strategy) Canonicalize(runtime.Object)                                      {}
func (strategy) AllowCreateOnUpdate() bool                                        { return false }
func (strategy) AllowUnconditionalUpdate() bool                                   { return true }
func (strategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string { return nil }
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// registry is a genericregistry.Store of example pods.
func registry(t *testing.T, options generic.RESTOptionsGetter) *genericregistry.Store {
	t.Helper()
	s := strategy{scheme, names.SimpleNameGenerator}
	r := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &example.Pod{} },
		NewListFunc:               func() runtime.Object { return &example.PodList{} },
		DefaultQualifiedResource:  schema.GroupResource{Group: "example.apiserver.k8s.io", Resource: "pods"},
		SingularQualifiedResource: schema.GroupResource{Group: "example.apiserver.k8s.io", Resource: "pod"},
		CreateStrategy:            s, UpdateStrategy: s, DeleteStrategy: s,
		TableConvertor: rest.NewDefaultTableConvertor(schema.GroupResource{Resource: "pods"}),
	}
	if err := r.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Destroy)
	return r
}

func TestRegistryWorksOnTheStorage(t *testing.T) {
	kv := newRaftstore(t)
	encodings := serverstorage.NewDefaultResourceEncodingConfig(scheme)
	factory := serverstorage.NewDefaultStorageFactory(storagebackend.Config{}, runtime.ContentTypeProtobuf, codecs,
		encodings, serverstorage.NewResourceConfig(), nil)
	r := registry(t, RESTOptions(RESTConfig{Store: kv, Factory: factory}))
	ctx := genericrequest.WithNamespace(context.Background(), "ns")
	w, err := r.Watch(ctx, &metainternal.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, name := range []string{"a", "b"} {
		if _, err := r.Create(ctx, pod("ns", name), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stored := kv.View().Get("/registry/pods/ns/a")
	if stored == nil || !strings.HasPrefix(string(stored.Value), "k8s\x00") {
		t.Fatalf("stored %+v, want protobuf", stored)
	}
	list, err := r.List(ctx, &metainternal.ListOptions{})
	if err != nil || len(list.(*example.PodList).Items) != 2 {
		t.Fatalf("list %v, %v", list, err)
	}
	fence := raftstore.CreateRevisionIs("/leader/x", 7)
	_, _, err = r.Delete(WithFence(ctx, fence), "a", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if !errors.Is(err, ErrFenced) || !apierrors.IsConflict(err) {
		t.Errorf("fenced delete through the registry: %v", err)
	}
	if _, err := r.DeleteCollection(ctx, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternal.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Deleted, watch.Deleted} {
		if e := receive(t, w); e.Type != want {
			t.Errorf("event %s, want %s", e.Type, want)
		}
	}
	if n := kv.View().Count("/registry/", raftstore.PrefixEnd("/registry/")); n != 0 {
		t.Errorf("%d keys left", n)
	}
}

func TestCustomObjectsAreStoredUnderTheirGroup(t *testing.T) {
	kv := newRaftstore(t)
	options, err := RESTOptions(RESTConfig{Store: kv, Codec: unstructured.UnstructuredJSONScheme}).
		GetRESTOptions(schema.GroupResource{Group: "example.com", Resource: "foos"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if options.ResourcePrefix != "example.com/foos" || !options.EnableGarbageCollection || options.CountMetricPollPeriod != 0 {
		t.Errorf("options %+v", options)
	}
	newFoo := func() runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Foo"}}
	}
	s, destroy, err := options.Decorator(options.StorageConfig, "/"+options.ResourcePrefix, nil, newFoo,
		func() runtime.Object {
			return &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "FooList"}}
		}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	ctx := context.Background()
	foo := newFoo().(*unstructured.Unstructured)
	foo.SetName("a")
	foo.SetLabels(map[string]string{"k": "v"})
	const key = "/example.com/foos/ns/a"
	if err := s.Create(ctx, key, foo, nil, 0); err != nil {
		t.Fatal(err)
	}
	if kv.View().Get("/registry"+key) == nil {
		t.Error("not stored under its group")
	}
	w, err := s.Watch(ctx, "/example.com/foos", storage.ListOptions{Predicate: storage.Everything, Recursive: true, ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	added := receive(t, w)
	got := newFoo().(*unstructured.Unstructured)
	if err := s.Get(ctx, key, storage.GetOptions{}, got); err != nil {
		t.Fatal(err)
	}
	got.GetLabels()["k"] = "changed"
	got.Object["metadata"].(map[string]any)["labels"].(map[string]any)["k"] = "changed"
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "FooList"}}
	if err := s.GetList(ctx, "/example.com/foos", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list); err != nil {
		t.Fatal(err)
	}
	list.Items[0].SetLabels(map[string]string{"k": "changed"})
	if l := added.Object.(runtime.CacheableObject).GetObject().(*unstructured.Unstructured).GetLabels()["k"]; l != "v" {
		t.Errorf("a reader's change reached a watcher: %q", l)
	}
	if err := s.Delete(ctx, key, newFoo(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := receive(t, w); e.Type != watch.Deleted || version(t, e.Object) != itoa(kv.View().Revision()) {
		t.Errorf("event %s at %s, want DELETED at %d", e.Type, version(t, e.Object), kv.View().Revision())
	}
}

func TestFaultyConfigurationsAreNamed(t *testing.T) {
	if _, err := RESTOptions(RESTConfig{}).GetRESTOptions(schema.GroupResource{}, nil); err == nil {
		t.Error("options without a store were accepted")
	}
	err := Config{ResourcePrefix: "pods"}.Validate()
	for _, fault := range []string{"no store", "no codec", "NewListFunc", `"pods"`} {
		if err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%v does not mention %s", err, fault)
		}
	}
	c := Config{Store: &raftstore.Store{}, Codec: apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		NewListFunc: func() runtime.Object { return &example.PodList{} }, ResourcePrefix: "/pods"}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
