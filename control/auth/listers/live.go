package listers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Snapshot is an immutable state of the store at one revision.
type Snapshot interface {
	Revision() int64
	// Get returns the stored object and the revision that wrote it; ok is false when there is none.
	Get(key string) (value []byte, modRevision int64, ok bool)
	// Scan calls fn for every key that starts with prefix, in order, until fn returns false.
	Scan(prefix string, fn func(key string, value []byte, modRevision int64) bool)
}

// Config says where objects are.
type Config struct {
	// Snapshot returns the newest applied state. It is called once per question.
	Snapshot func() Snapshot
	// Confirm returns when the state includes every write acknowledged before the call, on any server. It is asked before
	// something is refused, never before it is allowed; nil where nobody else writes. See Store.Confirm.
	Confirm func(context.Context) error
	// Prefix returns where a resource's keys start, with a slash at the end. Default: DefaultPrefix.
	Prefix func(schema.GroupResource) string
	// Transformer undoes what a resource's values are stored with; nil where they are stored as they are.
	Transformer func(schema.GroupResource) value.Transformer
	// Decode turns a value into an object of its external version. Default: the recognizing decoder of
	// legacyscheme. It must not keep or change the bytes.
	Decode func([]byte) (runtime.Object, error)
	// Hidden says for a resource which of its objects are as if they were not there; nil, as what it returns, hides none.
	Hidden func(schema.GroupResource) func(metav1.Object) bool
	// MaxCached bounds the decoded objects kept per kind. Default 2048; beyond it, objects are decoded each time.
	MaxCached int
}

// Validate reports what is missing.
func (c Config) Validate() error {
	if c.Snapshot == nil {
		return errors.New("live: Config.Snapshot must be set")
	}
	return nil
}

// Store answers for every kind. Safe for concurrent use.
type Store struct {
	cfg Config

	mu       sync.Mutex
	indexers map[schema.GroupResource]*Indexer
}

// New returns a Store.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Prefix == nil {
		cfg.Prefix = DefaultPrefix
	}
	if cfg.Decode == nil {
		d := legacyscheme.Codecs.UniversalDeserializer()
		cfg.Decode = func(b []byte) (runtime.Object, error) {
			obj, _, err := d.Decode(b, nil, nil)
			return obj, err
		}
	}
	if cfg.MaxCached == 0 {
		cfg.MaxCached = 2048
	}
	return &Store{cfg: cfg, indexers: map[schema.GroupResource]*Indexer{}}, nil
}

// upstreamPrefixes are the resources whose keys do not carry the resource's own name (as in kube-apiserver).
var upstreamPrefixes = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                  "controllers",
	{Resource: "endpoints"}:                               "services/endpoints",
	{Resource: "nodes"}:                                   "minions",
	{Resource: "services"}:                                "services/specs",
	{Group: "networking.k8s.io", Resource: "ingresses"}:   "ingress",
	{Group: "policy", Resource: "podsecuritypolicies"}:    "podsecuritypolicy",
	{Group: "extensions", Resource: "ingresses"}:          "ingress",
	{Group: "extensions", Resource: "networkpolicies"}:    "networkpolicies",
	{Group: "networking.k8s.io", Resource: "ipaddresses"}: "ipaddresses",

	{Group: "apiregistration.k8s.io", Resource: "apiservices"}: "apiregistration.k8s.io/apiservices",

	// Custom resources lie below their group.
	{Group: "gateway.networking.k8s.io", Resource: "gatewayclasses"}:  "gateway.networking.k8s.io/gatewayclasses",
	{Group: "gateway.networking.k8s.io", Resource: "gateways"}:        "gateway.networking.k8s.io/gateways",
	{Group: "gateway.networking.k8s.io", Resource: "referencegrants"}: "gateway.networking.k8s.io/referencegrants",
	{Group: "settings.k8s.io", Resource: "podpresets"}:                "settings.k8s.io/podpresets",

	{Group: "admissionregistration.k8s.io", Resource: "initializerconfigurations"}: "admissionregistration.k8s.io/initializerconfigurations",
}

// DefaultPrefix is "/registry/" and upstream's prefix for the resource.
func DefaultPrefix(gr schema.GroupResource) string {
	if p, ok := upstreamPrefixes[gr]; ok {
		return "/registry/" + p + "/"
	}
	return "/registry/" + gr.Resource + "/"
}

// Revision is the store's newest applied revision.
func (s *Store) Revision() int64 { return s.cfg.Snapshot().Revision() }

// patience is how long a refusal waits to be confirmed. Without a quorum it stands as it is: nobody can be told anything
// newer, and whoever was refused may come back.
const patience = 3 * time.Second

// Confirm reports whether there is newer state than the revision at which something was refused, so that the question
// should be asked again: a server that has not applied the last writes of another must not say "not found" or
// "forbidden" of what its client has just been promised.
func (s *Store) Confirm(ctx context.Context, since int64) bool {
	if s.cfg.Confirm == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.cfg.Confirm(ctx) == nil && s.Revision() > since
}

// Kept returns the indexer of a kind that is small: decoded objects are kept between questions.
func (s *Store) Kept(gr schema.GroupResource) *Indexer { return s.indexer(gr, s.cfg.MaxCached) }

// Fresh returns the indexer of a kind that may be large: every answer is decoded for the one who asks.
func (s *Store) Fresh(gr schema.GroupResource) *Indexer { return s.indexer(gr, 0) }

func (s *Store) indexer(gr schema.GroupResource, keep int) *Indexer {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.indexers[gr]
	if i == nil {
		i = &Indexer{store: s, prefix: s.cfg.Prefix(gr), keep: keep, decoded: map[string]entry{}}
		if s.cfg.Transformer != nil {
			i.transformer = s.cfg.Transformer(gr)
		}
		if s.cfg.Hidden != nil {
			i.hidden = s.cfg.Hidden(gr)
		}
		s.indexers[gr] = i
	}
	return i
}

type entry struct {
	modRevision int64
	obj         runtime.Object
}

// Indexer is a cache.Indexer over one kind's keys, indexed by namespace. Its writing methods fail: the store is
// written through the API only.
type Indexer struct {
	store  *Store
	prefix string
	keep   int

	transformer value.Transformer // nil: values are stored as they are
	hidden      func(metav1.Object) bool

	mu      sync.Mutex
	decoded map[string]entry
	all     atomic.Pointer[Listing]
}

var _ cache.Indexer = (*Indexer)(nil)

// ErrReadOnly is what the writing methods of cache.Indexer answer.
var ErrReadOnly = errors.New("live: the store is written through the API only")

// object returns the decoded value of key, from memory when it is the same version.
func (i *Indexer) object(key string, stored []byte, modRevision int64) (runtime.Object, error) {
	if i.keep > 0 {
		i.mu.Lock()
		e, ok := i.decoded[key]
		i.mu.Unlock()
		if ok && e.modRevision == modRevision {
			return e.obj, nil
		}
	}
	data, err := i.plain(key, stored)
	if err != nil {
		return nil, err
	}
	obj, err := i.store.cfg.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("live: decode %s: %w", key, err)
	}
	acc, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("live: decode %s: %w", key, err)
	}
	acc.SetResourceVersion(strconv.FormatInt(modRevision, 10))
	i.remember(key, entry{modRevision, obj})
	return obj, nil
}

// hides reports whether an object is as if it were not there.
func (i *Indexer) hides(obj runtime.Object) bool {
	if i.hidden == nil {
		return false
	}
	m, err := meta.Accessor(obj)
	return err == nil && i.hidden(m)
}

// plain is a stored value without encryption.
func (i *Indexer) plain(key string, stored []byte) ([]byte, error) {
	if i.transformer == nil {
		return stored, nil
	}
	data, _, err := i.transformer.TransformFromStorage(context.Background(), stored, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("live: read %s: %w", key, err)
	}
	return data, nil
}

func (i *Indexer) remember(key string, e entry) {
	if i.keep == 0 {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if have, ok := i.decoded[key]; ok && have.modRevision > e.modRevision {
		return // somebody read a newer state meanwhile
	} else if !ok && len(i.decoded) >= i.keep {
		for k := range i.decoded { // any one: the bound matters, not the order
			delete(i.decoded, k)
			break
		}
	}
	i.decoded[key] = e
}

func (i *Indexer) forget(key string) {
	i.mu.Lock()
	delete(i.decoded, key)
	i.mu.Unlock()
}

// Each calls fn for every object of a namespace ("" = all) until it returns false.
func (i *Indexer) Each(namespace string, fn func(obj runtime.Object) bool) error {
	prefix := i.prefix
	if namespace != "" {
		prefix += namespace + "/"
	}
	var failed error
	i.store.cfg.Snapshot().Scan(prefix, func(key string, value []byte, mod int64) bool {
		obj, err := i.object(key, value, mod)
		if err != nil {
			failed = err
			return false
		}
		return i.hides(obj) || fn(obj)
	})
	return failed
}

// Listing is every object of a kind at one moment. Read-only.
type Listing struct {
	Objects []runtime.Object

	seen     atomic.Int64 // the newest revision at which this was found to be all there is
	versions []version
}

type version struct {
	key         string
	modRevision int64
}

// All returns every object of the kind. As long as nothing changes it is the same Listing, which a caller may use to
// keep what he derived from it.
func (i *Indexer) All() (*Listing, error) {
	snap, last := i.store.cfg.Snapshot(), i.all.Load()
	revision := snap.Revision()
	if last != nil && (last.seen.Load() == revision || last.holds(snap, i.prefix)) {
		last.seen.Store(revision)
		return last, nil
	}
	l := &Listing{}
	var failed error
	snap.Scan(i.prefix, func(key string, value []byte, mod int64) bool {
		obj, err := i.object(key, value, mod)
		if err != nil {
			failed = err
			return false
		}
		if !i.hides(obj) {
			l.Objects = append(l.Objects, obj)
		}
		l.versions = append(l.versions, version{key, mod})
		return true
	})
	if failed != nil {
		return nil, failed
	}
	l.seen.Store(revision)
	i.all.Store(l)
	return l, nil
}

// holds: the same keys at the same versions.
func (l *Listing) holds(snap Snapshot, prefix string) bool {
	n, same := 0, true
	snap.Scan(prefix, func(key string, _ []byte, mod int64) bool {
		same = n < len(l.versions) && l.versions[n].modRevision == mod && l.versions[n].key == key
		n++
		return same
	})
	return same && n == len(l.versions)
}

// EachKey calls fn with key and mod revision of every object below a namespace ("" = all), reading nothing of it.
func (i *Indexer) EachKey(namespace string, fn func(key string, modRevision int64) bool) {
	i.scan(namespace, func(key string, _ []byte, mod int64) bool { return fn(key, mod) })
}

// EachVersion is EachKey with the objects, free of encryption but not decoded; nil is one that cannot be decrypted.
func (i *Indexer) EachVersion(namespace string, fn func(key string, data []byte, modRevision int64) bool) {
	i.scan(namespace, func(key string, stored []byte, mod int64) bool {
		data, err := i.plain(key, stored)
		if err != nil {
			data = nil
		}
		return fn(key, data, mod)
	})
}

func (i *Indexer) scan(namespace string, fn func(key string, stored []byte, mod int64) bool) {
	prefix := i.prefix
	if namespace != "" {
		prefix += namespace + "/"
	}
	i.store.cfg.Snapshot().Scan(prefix, fn)
}

// GetByKey takes "namespace/name" or "name". What is not there is looked for in the newest state anywhere before it is
// said not to be.
func (i *Indexer) GetByKey(key string) (any, bool, error) {
	full := i.prefix + key
	snap := i.store.cfg.Snapshot()
	value, mod, ok := snap.Get(full)
	if !ok && i.store.Confirm(context.Background(), snap.Revision()) {
		value, mod, ok = i.store.cfg.Snapshot().Get(full)
	}
	if !ok {
		i.forget(full)
		return nil, false, nil
	}
	obj, err := i.object(full, value, mod)
	if err == nil && i.hides(obj) {
		return nil, false, nil
	}
	return obj, err == nil, err
}

// Get takes an object and looks up its key.
func (i *Indexer) Get(obj any) (any, bool, error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, err
	}
	return i.GetByKey(key)
}

// List returns every object; those that cannot be decoded are left out.
func (i *Indexer) List() []any {
	var out []any
	i.store.cfg.Snapshot().Scan(i.prefix, func(key string, value []byte, mod int64) bool {
		if obj, err := i.object(key, value, mod); err == nil && !i.hides(obj) {
			out = append(out, obj)
		}
		return true
	})
	return out
}

// ListKeys returns "namespace/name" of every object.
func (i *Indexer) ListKeys() []string {
	var out []string
	i.store.cfg.Snapshot().Scan(i.prefix, func(key string, _ []byte, _ int64) bool {
		out = append(out, strings.TrimPrefix(key, i.prefix))
		return true
	})
	return out
}

// Index answers for cache.NamespaceIndex.
func (i *Indexer) Index(name string, obj any) ([]any, error) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("live: %T has no metadata", obj)
	}
	return i.ByIndex(name, m.GetNamespace())
}

// ByIndex answers for cache.NamespaceIndex.
func (i *Indexer) ByIndex(name, value string) ([]any, error) {
	if name != cache.NamespaceIndex {
		return nil, fmt.Errorf("live: index %q does not exist", name)
	}
	var out []any
	err := i.Each(value, func(obj runtime.Object) bool {
		out = append(out, obj)
		return true
	})
	return out, err
}

// IndexKeys answers for cache.NamespaceIndex.
func (i *Indexer) IndexKeys(name, value string) ([]string, error) {
	if name != cache.NamespaceIndex {
		return nil, fmt.Errorf("live: index %q does not exist", name)
	}
	var out []string
	i.EachKey(value, func(key string, _ int64) bool {
		out = append(out, strings.TrimPrefix(key, i.prefix))
		return true
	})
	return out, nil
}

// ListIndexFuncValues is empty: nothing asks.
func (i *Indexer) ListIndexFuncValues(string) []string { return nil }

// GetIndexers names the one index.
func (i *Indexer) GetIndexers() cache.Indexers {
	return cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
}

// AddIndexers fails: indexes are the store's prefixes.
func (i *Indexer) AddIndexers(cache.Indexers) error { return ErrReadOnly }

// Add fails.
func (i *Indexer) Add(any) error { return ErrReadOnly }

// Update fails.
func (i *Indexer) Update(any) error { return ErrReadOnly }

// Delete fails.
func (i *Indexer) Delete(any) error { return ErrReadOnly }

// Replace fails.
func (i *Indexer) Replace([]any, string) error { return ErrReadOnly }

// Bookmark does nothing.
func (i *Indexer) Bookmark(string) {}

// LastStoreSyncResourceVersion is the store's newest revision.
func (i *Indexer) LastStoreSyncResourceVersion() string {
	return strconv.FormatInt(i.store.Revision(), 10)
}

// Resync does nothing.
func (i *Indexer) Resync() error { return nil }
