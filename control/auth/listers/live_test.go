package listers

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

// shelf is a store that holds one revision at a time.
type shelf struct {
	revision int64
	values   map[string][]byte
	written  map[string]int64
	decoded  int
}

func newShelf() *shelf { return &shelf{values: map[string][]byte{}, written: map[string]int64{}} }

func (s *shelf) Revision() int64 { return s.revision }

func (s *shelf) Get(key string) ([]byte, int64, bool) {
	v, ok := s.values[key]
	return v, s.written[key], ok
}

func (s *shelf) Scan(prefix string, fn func(string, []byte, int64) bool) {
	var keys []string
	for k := range s.values {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	for _, k := range keys {
		if !fn(k, s.values[k], s.written[k]) {
			return
		}
	}
}

func (s *shelf) put(t testing.TB, key string, obj runtime.Object, gv schema.GroupVersion) {
	t.Helper()
	data, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(gv), obj)
	if err != nil {
		t.Fatal(err)
	}
	s.revision++
	s.values[key], s.written[key] = data, s.revision
}

func (s *shelf) drop(key string) {
	s.revision++
	delete(s.values, key)
}

func store(t testing.TB, s *shelf, maxCached int) *Store {
	t.Helper()
	d := legacyscheme.Codecs.UniversalDeserializer()
	st, err := New(Config{Snapshot: func() Snapshot { return s }, MaxCached: maxCached, Decode: func(b []byte) (runtime.Object, error) {
		s.decoded++
		o, _, err := d.Decode(b, nil, nil)
		return o, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func account(ns, name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
}

func TestListersSeeEveryWriteAndDecodeOnce(t *testing.T) {
	s := newShelf()
	f := NewFactory(store(t, s, 0), informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	accounts := f.Core().V1().ServiceAccounts()
	if !accounts.Informer().HasSynced() {
		t.Fatal("not synced")
	}
	if _, err := accounts.Lister().ServiceAccounts("a").Get("x"); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	for _, ns := range []string{"a", "ab"} {
		s.put(t, "/registry/serviceaccounts/"+ns+"/x", account(ns, "x"), corev1.SchemeGroupVersion)
	}
	for range 3 {
		got, err := accounts.Lister().ServiceAccounts("a").List(labels.Everything())
		if err != nil || len(got) != 1 || got[0].ResourceVersion != "1" {
			t.Fatalf("%v, %v", got, err)
		}
	}
	if s.decoded != 1 {
		t.Errorf("decoded %d times", s.decoded)
	}
	if all, err := accounts.Lister().List(labels.Everything()); err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	changed := account("a", "x")
	changed.Labels = map[string]string{"new": "yes"}
	s.put(t, "/registry/serviceaccounts/a/x", changed, corev1.SchemeGroupVersion)
	if got, err := accounts.Lister().ServiceAccounts("a").Get("x"); err != nil || got.Labels["new"] != "yes" || got.ResourceVersion != "3" {
		t.Fatalf("%v, %v", got, err)
	}
	s.drop("/registry/serviceaccounts/a/x")
	if _, err := accounts.Lister().ServiceAccounts("a").Get("x"); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

func TestDecodedObjectsAreBounded(t *testing.T) {
	s := newShelf()
	st := store(t, s, 10)
	for i := range 50 {
		s.put(t, fmt.Sprintf("/registry/serviceaccounts/a/s%d", i), account("a", fmt.Sprintf("s%d", i)), corev1.SchemeGroupVersion)
	}
	i := st.Kept(schema.GroupResource{Resource: "serviceaccounts"})
	if got := len(i.List()); got != 50 {
		t.Fatalf("%d listed", got)
	}
	if len(i.decoded) > 10 {
		t.Errorf("%d kept", len(i.decoded))
	}
}

func TestOneBadObjectDoesNotHideTheOthersFromAListButFailsWhoNeedsAll(t *testing.T) {
	s := newShelf()
	st := store(t, s, 0)
	s.put(t, "/registry/serviceaccounts/a/x", account("a", "x"), corev1.SchemeGroupVersion)
	s.values["/registry/serviceaccounts/a/bad"], s.written["/registry/serviceaccounts/a/bad"] = []byte("k8s\x00garbage"), 9
	i := st.Kept(schema.GroupResource{Resource: "serviceaccounts"})
	if got := len(i.List()); got != 1 {
		t.Errorf("%d listed", got)
	}
	if _, err := i.ByIndex(cache.NamespaceIndex, "a"); err == nil || !strings.Contains(err.Error(), "/registry/serviceaccounts/a/bad") {
		t.Errorf("got %v", err)
	}
}

func TestHandlersOfWebhookConfigurationsAreToldWhenAsked(t *testing.T) {
	s := newShelf()
	f := NewFactory(store(t, s, 0), informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	var told []string
	note := func(what string) func(any) {
		return func(o any) {
			told = append(told, what+" "+o.(*admissionregistrationv1.MutatingWebhookConfiguration).Name)
		}
	}
	_, err := f.Admissionregistration().V1().MutatingWebhookConfigurations().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: note("add"), DeleteFunc: note("delete"), UpdateFunc: func(_, o any) { note("update")(o) }})
	if err != nil {
		t.Fatal(err)
	}
	key, gv := "/registry/mutatingwebhookconfigurations/h", admissionregistrationv1.SchemeGroupVersion
	hook := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "h"}}
	if n := f.MutatingWebhooks(); n != 0 {
		t.Fatal(n)
	}
	s.put(t, key, hook, gv)
	if n := f.MutatingWebhooks(); n != 1 {
		t.Fatal(n)
	}
	s.put(t, key, hook, gv)
	s.put(t, "/registry/serviceaccounts/a/x", account("a", "x"), corev1.SchemeGroupVersion)
	f.MutatingWebhooks()
	s.drop(key)
	if n := f.MutatingWebhooks(); n != 0 {
		t.Fatal(n)
	}
	if got := strings.Join(told, ", "); got != "add h, update h, delete h" {
		t.Fatal(got)
	}
}

func TestAListingIsTheSameUntilSomethingChanges(t *testing.T) {
	s := newShelf()
	i := store(t, s, 0).Kept(schema.GroupResource{Resource: "serviceaccounts"})
	all := func() *Listing {
		l, err := i.All()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if n := len(all().Objects); n != 0 {
		t.Fatal(n)
	}
	s.put(t, "/registry/serviceaccounts/a/x", account("a", "x"), corev1.SchemeGroupVersion)
	one := all()
	s.put(t, "/registry/other/y", account("a", "y"), corev1.SchemeGroupVersion)
	if all() != one || len(one.Objects) != 1 {
		t.Error("another kind's write made a new listing")
	}
	s.put(t, "/registry/serviceaccounts/a/x", account("a", "x"), corev1.SchemeGroupVersion)
	if two := all(); two == one || two.Objects[0].(*corev1.ServiceAccount).ResourceVersion != "3" {
		t.Error("the old version is listed")
	}
	s.drop("/registry/serviceaccounts/a/x")
	if n := len(all().Objects); n != 0 {
		t.Errorf("%d objects after the delete", n)
	}
}

func TestWritingIsRefused(t *testing.T) {
	i := store(t, newShelf(), 0).Kept(schema.GroupResource{Resource: "namespaces"})
	for _, err := range []error{i.Add(nil), i.Update(nil), i.Delete(nil), i.Replace(nil, "")} {
		if err != ErrReadOnly {
			t.Error(err)
		}
	}
}
