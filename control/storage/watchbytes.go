package storage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// Listener is told what a BytesWatch sees, in order, from the goroutine of Run. An
// error of it ends the watch.
type Listener interface {
	// Existing tells of an object that is there at the beginning.
	Existing(Object) error
	// Changed tells of a change.
	Changed(Change) error
	// Bookmark: obj, which the listener may change, carries the revision up to
	// which everything has been told; initial marks the end of what is there at
	// the beginning.
	Bookmark(obj runtime.Object, initial bool) error
	// CaughtUp: there is nothing more to tell yet.
	CaughtUp() error
}

// Object is one version of a stored object. The zero Object is none.
type Object struct {
	reader *reader
	kv     *raftstore.KeyValue
	// Revision is the resourceVersion to show. Of the last state of an object that
	// is gone that is the revision at which it went.
	Revision int64
}

// Exists reports whether there is an object.
func (o Object) Exists() bool { return o.kv != nil }

// Key is where it is stored.
func (o Object) Key() string { return o.kv.Key }

// Data is its bytes, free of encryption and read-only.
func (o Object) Data(ctx context.Context) ([]byte, error) {
	data, _, err := o.reader.plain(ctx, o.kv)
	return data, err
}

// Decoded is the object as a watch.Interface of the same storage gives it, for
// those whose bytes do not do.
func (o Object) Decoded(ctx context.Context) (runtime.Object, error) {
	d, err := o.reader.shared(ctx, o.kv)
	if err != nil {
		return nil, err
	}
	if o.Revision != o.kv.ModRevision {
		d = o.reader.withVersion(d, o.Revision)
	}
	return d.share(), nil
}

// Change is what one write did to an object. Now does not exist when it was
// deleted, Before when it was created, or when it is not known any more.
type Change struct {
	Key         string
	Revision    int64
	Now, Before Object
	Created     bool
}

// BytesWatch is a watch that tells of stored bytes. It follows the rules of
// storage.Interface's Watch, but for selectors, which are the listener's business.
type BytesWatch struct {
	*watcher
	listener Listener
}

var _ teller = (*BytesWatch)(nil)

// Watch makes a watch; it fails where storage.Interface's Watch does. Run has to
// be called.
func (b Bytes) Watch(ctx context.Context, key string, opts storage.ListOptions) (*BytesWatch, error) {
	core, err := b.s.newWatcher(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	w := &BytesWatch{watcher: core}
	core.to = w
	return w, nil
}

// Run tells l of everything until the watch's context ends or l or the store
// fails. A listener that blocks does not slow anybody: once the store's history
// has gone round without it, the watch ends with an error.
func (w *BytesWatch) Run(l Listener) error {
	defer w.cancel()
	w.listener = l
	err := w.stream()
	if w.ctx.Err() != nil {
		return nil // the client has left; it is owed nothing
	}
	return err
}

func (w *BytesWatch) object(kv *raftstore.KeyValue) Object {
	if kv == nil {
		return Object{}
	}
	return Object{reader: w.s.reader, kv: kv, Revision: kv.ModRevision}
}

func (w *BytesWatch) existing(kv *raftstore.KeyValue) error { return w.listener.Existing(w.object(kv)) }

func (w *BytesWatch) change(e raftstore.Event) error {
	c := Change{Key: e.KV.Key, Revision: e.KV.ModRevision, Before: w.object(e.Prev)}
	if e.Type != raftstore.EventDelete {
		c.Now, c.Created = w.object(e.KV), e.KV.CreateRevision == e.KV.ModRevision
	} else if e.Prev == nil {
		return fmt.Errorf("deletion of %q at revision %d has no previous state", e.KV.Key, e.KV.ModRevision)
	}
	c.Before.Revision = c.Revision // under which it is shown, if it is shown
	return w.listener.Changed(c)
}

func (w *BytesWatch) bookmark(rev int64, initial bool) error {
	obj, err := w.s.bookmark(rev, initial)
	if err != nil {
		return err
	}
	return w.listener.Bookmark(obj, initial)
}

func (w *BytesWatch) caughtUp() error { return w.listener.CaughtUp() }
