package storage

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/balsahq/balsa/raftstore"
)

// Config configures the storage of one resource.
type Config struct {
	Store *raftstore.Store
	// Codec encodes to the storage version and decodes to the version that the registry works with (for built-in kinds
	// the internal one).
	Codec runtime.Codec
	// NewFunc and NewListFunc make an empty object and an empty list. Without
	// NewFunc a watch can send no bookmarks.
	NewFunc, NewListFunc func() runtime.Object
	// Prefix starts every key and is usually "/registry". ResourcePrefix follows it and starts with "/", for example
	// "/pods" or "/apiextensions.k8s.io/foos".
	Prefix, ResourcePrefix string
	GroupResource          schema.GroupResource
	// Transformer converts between encoded and stored bytes, for example by encryption. Nil stores the encoded bytes.
	Transformer value.Transformer
	// Memos bounds the decoded objects that are kept. The storages of one server should share one. Nil makes a new one
	// of DefaultMemoBytes.
	Memos *Memos
	// BookmarkInterval is the time between bookmarks of a watch that asked for them; no bookmark is sent when nothing
	// was skipped. 0 means one minute. ProgressInterval is the same for ListOptions.ProgressNotify; 0 means five
	// seconds.
	BookmarkInterval, ProgressInterval time.Duration
}

// Validate reports every fault of the configuration at once.
func (c Config) Validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("no store"))
	}
	if c.Codec == nil {
		errs = append(errs, errors.New("no codec"))
	}
	if c.NewListFunc == nil {
		errs = append(errs, errors.New("no NewListFunc"))
	}
	if !strings.HasPrefix(c.ResourcePrefix, "/") || c.ResourcePrefix == "/" {
		errs = append(errs, fmt.Errorf("resource prefix %q must start with / and name a resource", c.ResourcePrefix))
	}
	if c.BookmarkInterval < 0 || c.ProgressInterval < 0 {
		errs = append(errs, errors.New("negative bookmark interval"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("storage of %s: %w", c.GroupResource, err)
	}
	return nil
}

// New returns the storage of one resource. It starts nothing and needs no closing. It panics on a configuration that
// Validate rejects.
func New(c Config) storage.Interface { return newStore(c) }

func newStore(c Config) *store {
	registerMetrics()
	if err := c.Validate(); err != nil {
		panic(err)
	}
	if c.Transformer == nil {
		c.Transformer = identity.NewEncryptCheckTransformer()
	}
	if c.Memos == nil {
		c.Memos = NewMemos(DefaultMemoBytes)
	}
	if c.BookmarkInterval == 0 {
		c.BookmarkInterval = time.Minute
	}
	if c.ProgressInterval == 0 {
		c.ProgressInterval = 5 * time.Second
	}
	prefix := path.Join("/", c.Prefix)
	if !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	s := &store{
		Config:    c,
		kv:        c.Store,
		prefix:    prefix,
		versioner: versioner{},
		leases:    newLeases(c.Store),
		progress:  map[*watcher]struct{}{},
	}
	s.reader = newReader(c.Codec, c.Transformer, c.Memos)
	return s
}
