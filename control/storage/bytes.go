package storage

import (
	"context"

	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// Bytes reads the objects of one resource as they are stored, without decoding
// them. What it gives is read-only.
type Bytes struct{ s *store }

// BytesOf is the Bytes of a storage this package made, or of one that has such a
// storage to Unwrap; ok is false for others.
func BytesOf(i storage.Interface) (b Bytes, ok bool) {
	if w, wraps := i.(interface{ Unwrap() storage.Interface }); wraps {
		i = w.Unwrap()
	}
	s, ok := i.(*store)
	return Bytes{s}, ok
}

// Stored is one object: its bytes, free of encryption, at a revision of the key.
type Stored struct {
	Key      string
	Data     []byte
	Revision int64
}

// Page is what a list says beside its items.
type Page struct {
	Revision  uint64
	Continue  string
	Remaining *int64 // nil when it is not known
}

// Get returns one object. ok is false when there is none.
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
	data, _, err := b.s.reader.plain(ctx, kv)
	return Stored{kv.Key, data, kv.ModRevision}, err == nil, err
}

// List calls keep with each object below key, in order, which says whether the
// object is part of the list. Limit and Continue of the predicate are obeyed; its
// selectors are keep's business, and must be set all the same. As GetList does, it
// fails on what cannot be read.
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
			data, _, err = b.s.reader.plain(ctx, kv)
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
