package storage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/raftstore"
)

// Listener receives the events of a BytesWatch, in order, on the goroutine of Run. An error that it returns ends the
// watch.
type Listener interface {
	// Existing receives an object that existed at the start.
	Existing(Object) error
	// Changed receives a change.
	Changed(Change) error
	// Bookmark: every event up to obj's resourceVersion has been delivered. The listener may change obj. initial marks
	// the end of the objects that existed at the start.
	Bookmark(obj runtime.Object, initial bool) error
	// CaughtUp: no further event is waiting.
	CaughtUp() error
}

// Object is one version of a stored object. The zero Object stands for none.
type Object struct {
	reader *reader
	kv     *raftstore.KeyValue
	// Revision is the resourceVersion to show. For the last state of a deleted object it is the revision of the
	// deletion.
	Revision int64
}

// Exists reports whether o holds an object.
func (o Object) Exists() bool { return o.kv != nil }

// Key returns the store's key of the object.
func (o Object) Key() string { return o.kv.Key }

// Data returns the stored bytes, decrypted. They are read-only.
func (o Object) Data(ctx context.Context) ([]byte, error) {
	data, _, err := o.reader.decrypt(ctx, o.kv)
	return data, err
}

// Decoded returns the object as a watch of the same storage's storage.Interface sends it, for clients that cannot take
// the stored bytes.
func (o Object) Decoded(ctx context.Context) (runtime.Object, error) {
	d, err := o.reader.decodeShared(ctx, o.kv)
	if err != nil {
		return nil, err
	}
	if o.Revision != o.kv.ModRevision {
		d = o.reader.withVersion(d, o.Revision)
	}
	return d.share(), nil
}

// Change is one write to an object. Now does not exist after a deletion. Before does not exist for a creation, or when
// the previous state is not in the history any more.
type Change struct {
	Key         string
	Revision    int64
	Now, Before Object
	Created     bool
}

// BytesWatch is a watch that sends stored bytes. It follows the rules of storage.Interface's Watch, except that the
// listener applies the selectors.
type BytesWatch struct {
	*watcher
	listener Listener
}

var _ eventSink = (*BytesWatch)(nil)

// Watch returns a watch that starts when Run is called. It fails where storage.Interface's Watch fails.
func (b Bytes) Watch(ctx context.Context, key string, opts storage.ListOptions) (*BytesWatch, error) {
	core, err := b.s.newWatcher(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	w := &BytesWatch{watcher: core}
	core.sink = w
	return w, nil
}

// Run sends all events to l until the watch's context ends, or l or the store returns an error. A listener that blocks
// slows no other watch and no write: once the store's ring has overwritten an event that it has not read, the watch
// ends with an error.
func (w *BytesWatch) Run(l Listener) error {
	defer w.cancel()
	w.listener = l
	err := w.stream()
	if w.ctx.Err() != nil {
		return nil // the client has left and needs no answer
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
	c.Before.Revision = c.Revision // clients see the last state under the revision of the deletion
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
