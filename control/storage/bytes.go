package storage

import (
	"context"

	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// Bytes reads the objects of one resource as they are stored, without decoding them. The bytes it returns are
// read-only.
type Bytes struct{ s *store }

// BytesOf returns the Bytes of a storage that this package made, or of a wrapper around one (a type with Unwrap). ok is
// false for any other storage.
func BytesOf(i storage.Interface) (b Bytes, ok bool) {
	if w, wraps := i.(interface{ Unwrap() storage.Interface }); wraps {
		i = w.Unwrap()
	}
	s, ok := i.(*store)
	return Bytes{s}, ok
}

// Stored is one object: its bytes, decrypted, and the revision at which its key was last written.
type Stored struct {
	Key      string
	Data     []byte
	Revision int64
}

// Page is the metadata of a list.
type Page struct {
	Revision  uint64
	Continue  string
	Remaining *int64 // nil when it is not known
}

// Get returns one object; ok is false if it does not exist.
func (b Bytes) Get(ctx context.Context, key, resourceVersion string) (o Stored, ok bool, err error) {
	key, err = b.s.key(key, false)
	if err != nil {
		return o, false, err
	}
	view, err := b.s.view(ctx, resourceVersion)
	if err != nil {
		return o, false, err
	}
	kv := view.Get(key)
	if kv == nil {
		return o, false, nil
	}
	data, _, err := b.s.reader.decrypt(ctx, kv)
	return Stored{kv.Key, data, kv.ModRevision}, err == nil, err
}

// List calls keep with each object below key, in key order; keep returns whether the object belongs to the list. List
// applies the predicate's Limit and Continue. keep has to apply the selectors; set them in opts all the same, because
// the remaining item count depends on them. As GetList does, List fails on an unreadable object.
func (b Bytes) List(ctx context.Context, key string, opts storage.ListOptions, keep func(Stored) bool) (page Page, err error) {
	prefix, err := b.s.key(key, true)
	if err != nil {
		return page, err
	}
	view, start, err := b.s.listView(ctx, prefix, opts)
	if err != nil {
		return page, err
	}
	var last string
	n, more, limit := int64(0), false, opts.Predicate.Limit
	view.Ascend(start, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool {
		if limit > 0 && n >= limit {
			more = true
			return false
		}
		last = kv.Key
		var data []byte
		if err = ctx.Err(); err == nil {
			data, _, err = b.s.reader.decrypt(ctx, kv)
		}
		if err == nil && keep(Stored{kv.Key, data, kv.ModRevision}) {
			n++
		}
		return err == nil
	})
	if err != nil {
		return page, err
	}
	total := int64(0)
	if more && opts.Predicate.Empty() {
		total = int64(view.Count(start, raftstore.PrefixEnd(prefix)))
	}
	page.Revision = uint64(view.Revision())
	page.Continue, page.Remaining, err = storage.PrepareContinueToken(last, prefix, view.Revision(), total, more, opts)
	return page, err
}
