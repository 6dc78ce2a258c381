package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// backend is the part of *raftstore.Store that a storage uses.
type backend interface {
	granter
	Txn(context.Context, raftstore.Txn) (*raftstore.TxnResult, error)
	View() *raftstore.View
	ViewAt(rev int64) (*raftstore.View, error)
	Barrier(context.Context) (*raftstore.View, error)
	Watch(raftstore.WatchRequest) (*raftstore.Watcher, error)
	CompactRevision() int64
}

var (
	_ storage.Interface = (*store)(nil)
	_ backend           = (*raftstore.Store)(nil)
)

// store is the storage.Interface of one resource.
type store struct {
	Config
	kv        backend
	prefix    string // starts and ends with "/"
	versioner storage.Versioner
	reader    *reader
	leases    *leases

	mu       sync.Mutex
	progress map[*watcher]struct{} // watches with ProgressNotify; guarded by mu
	sizes    bool                  // Stats estimates sizes; guarded by mu
}

// Versioner implements storage.Interface.
func (s *store) Versioner() storage.Versioner { return s.versioner }

// CompactRevision implements storage.Interface. It returns the newest revision below which nothing can be read any
// more, 0 while everything can. The revision of an empty store is 1, with nothing below it.
func (s *store) CompactRevision() int64 {
	if rev := s.kv.CompactRevision(); rev > 1 {
		return rev
	}
	return 0
}

// ReadinessCheck implements storage.Interface. Reads are served as long as the store is open, with or without a leader.
func (s *store) ReadinessCheck() error {
	if s.kv.View() == nil {
		return storage.ErrStorageNotReady
	}
	return nil
}

// key returns the store's key for a key of storage.Interface. The keys of recursive requests end in "/".
func (s *store) key(key string, recursive bool) (string, error) {
	key, err := storage.PrepareKey(s.ResourcePrefix, key, recursive)
	if err != nil {
		return "", err
	}
	if key[0] == '/' {
		key = key[1:]
	}
	return s.prefix + key, nil
}

// view returns a state that a read with this resourceVersion may see. For "" the state holds every acknowledged write,
// for another version it is not older than that version.
func (s *store) view(ctx context.Context, resourceVersion string) (*raftstore.View, error) {
	if resourceVersion == "" {
		v, err := s.barrier(ctx)
		return v, storeError(err)
	}
	least, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return s.waitForRevision(ctx, least)
}

// viewAt returns the state at exactly rev, and waits for a revision that this server has not applied yet. Its errors
// are the store's, except when that wait fails: that error is for the API.
func (s *store) viewAt(ctx context.Context, rev int64) (*raftstore.View, error) {
	v, err := s.kv.ViewAt(rev)
	if !errors.Is(err, raftstore.ErrFutureRevision) {
		return v, err
	}
	if _, err := s.waitForRevision(ctx, uint64(rev)); err != nil {
		return nil, err
	}
	return s.kv.ViewAt(rev)
}

// Get implements storage.Interface.
func (s *store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, err := s.key(key, false)
	if err != nil {
		return err
	}
	view, err := s.view(ctx, opts.ResourceVersion)
	if err != nil {
		return err
	}
	kv := view.Get(key)
	if kv == nil {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, 0)
	}
	done, err := s.verbatimGet(ctx, kv, out)
	if err == nil && !done {
		err = s.reader.fill(ctx, kv, out)
	}
	if err != nil {
		return getError(err)
	}
	return nil
}

// GetCurrentResourceVersion implements storage.Interface. It returns the revision of the whole store, not of one
// resource.
func (s *store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	v, err := s.barrier(ctx)
	if err != nil {
		return 0, storeError(err)
	}
	return uint64(v.Revision()), nil
}

// Stats implements storage.Interface. It returns the number of objects, and their exact average size if
// EnableResourceSizeEstimation was called.
func (s *store) Stats(context.Context) (storage.Stats, error) {
	prefix, err := s.key(s.ResourcePrefix, true)
	if err != nil {
		return storage.Stats{}, err
	}
	s.mu.Lock()
	sizes := s.sizes
	s.mu.Unlock()
	view, end := s.kv.View(), raftstore.PrefixEnd(prefix)
	stats := storage.Stats{ObjectCount: int64(view.Count(prefix, end))}
	if !sizes || stats.ObjectCount == 0 {
		return stats, nil
	}
	var bytes int64
	view.Ascend(prefix, end, func(kv *raftstore.KeyValue) bool {
		bytes += int64(len(kv.Value))
		return true
	})
	stats.EstimatedAverageObjectSizeBytes = bytes / stats.ObjectCount
	return stats, nil
}

// EnableResourceSizeEstimation implements storage.Interface. keys is never called, because all sizes are in memory.
func (s *store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizes {
		return errors.New("resource size estimation is already enabled")
	}
	s.sizes = true
	return nil
}

// RequestWatchProgress implements storage.Interface: each watch with ProgressNotify sends a bookmark now.
func (s *store) RequestWatchProgress(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.progress {
		w.requestBookmark()
	}
	return nil
}

// ttl converts a time to live in seconds, as storage.Interface has it.
func ttl(seconds uint64) time.Duration { return time.Duration(seconds) * time.Second }
