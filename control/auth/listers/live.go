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
	// Get returns the stored object and the revision of its last write; ok is false if it does not exist.
	Get(key string) (value []byte, modRevision int64, ok bool)
	// Scan calls fn for every key that starts with prefix, in key order, until fn returns false.
	Scan(prefix string, fn func(key string, value []byte, modRevision int64) bool)
}

// Config configures a Store.
type Config struct {
	// Snapshot returns the newest applied state. It is called once for each read.
	Snapshot func() Snapshot
	// Confirm returns when the state includes every write acknowledged before the call, on any server. It is called
	// before a refusal, never before an approval; nil if no other server writes. See Store.Confirm.
	Confirm func(context.Context) error
	// Prefix returns the start of a resource's keys, ending in a slash. Default: DefaultPrefix.
	Prefix func(schema.GroupResource) string
	// Transformer returns the transformer of a resource's stored values; nil: none.
	Transformer func(schema.GroupResource) value.Transformer
	// Decode decodes a value into an object of its external version. Default: the recognizing decoder of legacyscheme.
	// It must not keep or change the bytes.
	Decode func([]byte) (runtime.Object, error)
	// Hidden returns a function that reports which objects of a resource readers must not see; nil, here or as the
	// result, hides none.
	Hidden func(schema.GroupResource) func(metav1.Object) bool
	// MaxCached bounds the decoded objects that are kept for each kind. Default 2048; further objects are decoded each
	// time.
	MaxCached int
}

// Validate returns an error if a required field is missing.
func (c Config) Validate() error {
	if c.Snapshot == nil {
		return errors.New("listers: Config.Snapshot must be set")
	}
	return nil
}

// Store returns listers of every kind. Its methods are safe for concurrent use.
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

// upstreamPrefixes are the resources whose keys do not start with the resource's name (as in kube-apiserver).
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

	// Custom resources are stored below their group.
	{Group: "gateway.networking.k8s.io", Resource: "gatewayclasses"}:  "gateway.networking.k8s.io/gatewayclasses",
	{Group: "gateway.networking.k8s.io", Resource: "gateways"}:        "gateway.networking.k8s.io/gateways",
	{Group: "gateway.networking.k8s.io", Resource: "referencegrants"}: "gateway.networking.k8s.io/referencegrants",
	{Group: "settings.k8s.io", Resource: "podpresets"}:                "settings.k8s.io/podpresets",

	{Group: "admissionregistration.k8s.io", Resource: "initializerconfigurations"}: "admissionregistration.k8s.io/initializerconfigurations",
}

// DefaultPrefix returns "/registry/" and upstream's prefix for the resource.
func DefaultPrefix(gr schema.GroupResource) string {
	if p, ok := upstreamPrefixes[gr]; ok {
		return "/registry/" + p + "/"
	}
	return "/registry/" + gr.Resource + "/"
}

// Revision returns the store's newest applied revision.
func (s *Store) Revision() int64 { return s.cfg.Snapshot().Revision() }

// patience is how long a refusal waits to be confirmed. Without a quorum the refusal stands: no server could have
// acknowledged anything newer, and the client may try again.
const patience = 3 * time.Second

// Confirm reports whether there is newer state than the revision since, at which something was refused; the caller
// should then decide again. Without this, a server that has not applied the last writes of another could answer "not
// found" or "forbidden" for an object that its client has just created.
func (s *Store) Confirm(ctx context.Context, since int64) bool {
	if s.cfg.Confirm == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.cfg.Confirm(ctx) == nil && s.Revision() > since
}

// Kept returns the indexer of a small kind, whose decoded objects are kept between reads.
func (s *Store) Kept(gr schema.GroupResource) *Indexer { return s.indexer(gr, s.cfg.MaxCached) }

// Fresh returns the indexer of a kind that may be large: objects are decoded for each read.
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

// Indexer is a cache.Indexer over the keys of one kind, indexed by namespace. Its writing methods fail, because the
// store is written only through the API.
type Indexer struct {
	store  *Store
	prefix string
	keep   int

	transformer value.Transformer // nil: values are stored without one
	hidden      func(metav1.Object) bool

	mu      sync.Mutex
	decoded map[string]entry
	all     atomic.Pointer[Listing]
}

var _ cache.Indexer = (*Indexer)(nil)

// ErrReadOnly is the error of cache.Indexer's writing methods.
var ErrReadOnly = errors.New("listers: the store is written through the API only")

// object returns the decoded value of key; it decodes only versions that are not kept.
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
		return nil, fmt.Errorf("listers: decode %s: %w", key, err)
	}
	acc, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("listers: decode %s: %w", key, err)
	}
	acc.SetResourceVersion(strconv.FormatInt(modRevision, 10))
	i.remember(key, entry{modRevision, obj})
	return obj, nil
}

// hides reports whether readers must not see an object.
func (i *Indexer) hides(obj runtime.Object) bool {
	if i.hidden == nil {
		return false
	}
	m, err := meta.Accessor(obj)
	return err == nil && i.hidden(m)
}

// plain returns the decrypted value.
func (i *Indexer) plain(key string, stored []byte) ([]byte, error) {
	if i.transformer == nil {
		return stored, nil
	}
	data, _, err := i.transformer.TransformFromStorage(context.Background(), stored, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("listers: read %s: %w", key, err)
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
		return // a newer version is kept already
	} else if !ok && len(i.decoded) >= i.keep {
		for k := range i.decoded { // drop any one: only the bound matters
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

// Each calls fn for every object of a namespace ("" = all) until fn returns false.
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

// Listing holds all objects of a kind at one moment. It is read-only.
type Listing struct {
	Objects []runtime.Object

	seen     atomic.Int64 // the newest revision at which it was still complete
	versions []version
}

type version struct {
	key         string
	modRevision int64
}

// All returns all objects of the kind. It returns the same Listing until something changes, so that a caller can cache
// what it derives from the Listing.
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

// holds reports whether the state has the same keys at the same versions.
func (l *Listing) holds(snap Snapshot, prefix string) bool {
	n, same := 0, true
	snap.Scan(prefix, func(key string, _ []byte, mod int64) bool {
		same = n < len(l.versions) && l.versions[n].modRevision == mod && l.versions[n].key == key
		n++
		return same
	})
	return same && n == len(l.versions)
}

// EachKey calls fn with the key and mod revision of every object in a namespace ("" = all), without reading values.
func (i *Indexer) EachKey(namespace string, fn func(key string, modRevision int64) bool) {
	i.scan(namespace, func(key string, _ []byte, mod int64) bool { return fn(key, mod) })
}

// EachVersion is EachKey with the decrypted values, which are not decoded; nil for a value that cannot be decrypted.
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

// GetByKey returns the object "namespace/name" or "name". If the key is missing, it looks again in a state with every
// acknowledged write.
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

// Get returns the stored object with obj's key.
func (i *Indexer) Get(obj any) (any, bool, error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, err
	}
	return i.GetByKey(key)
}

// List returns every object, except those that cannot be decoded.
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

// Index implements cache.Indexer for cache.NamespaceIndex.
func (i *Indexer) Index(name string, obj any) ([]any, error) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("listers: %T has no metadata", obj)
	}
	return i.ByIndex(name, m.GetNamespace())
}

// ByIndex implements cache.Indexer for cache.NamespaceIndex.
func (i *Indexer) ByIndex(name, value string) ([]any, error) {
	if name != cache.NamespaceIndex {
		return nil, fmt.Errorf("listers: index %q does not exist", name)
	}
	var out []any
	err := i.Each(value, func(obj runtime.Object) bool {
		out = append(out, obj)
		return true
	})
	return out, err
}

// IndexKeys implements cache.Indexer for cache.NamespaceIndex.
func (i *Indexer) IndexKeys(name, value string) ([]string, error) {
	if name != cache.NamespaceIndex {
		return nil, fmt.Errorf("listers: index %q does not exist", name)
	}
	var out []string
	i.EachKey(value, func(key string, _ int64) bool {
		out = append(out, strings.TrimPrefix(key, i.prefix))
		return true
	})
	return out, nil
}

// ListIndexFuncValues returns nil; no caller needs it.
func (i *Indexer) ListIndexFuncValues(string) []string { return nil }

// GetIndexers returns the one index.
func (i *Indexer) GetIndexers() cache.Indexers {
	return cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
}

// AddIndexers fails: the indexes are the store's key prefixes.
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
