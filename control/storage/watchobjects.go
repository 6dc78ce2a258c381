package storage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
)

// watchBuffer is how many events wait for a slow client before its watch stops reading the store's ring. Once the ring
// has overwritten an event that the watch has not read, the watch ends with 410 Gone.
const watchBuffer = 100

// objects is a watch that sends decoded objects.
type objects struct {
	*watcher
	reader  *reader
	all     bool // the predicate selects everything
	keep    int  // encoded bytes that this watch may still add to Memos
	results chan watch.Event
}

var _ eventSink = (*objects)(nil)

// Watch implements storage.Interface. With resourceVersion "" or "0", or with SendInitialEvents, the existing objects
// come first, as ADDED. If bookmarks are allowed too, SendInitialEvents marks the end of these objects with a bookmark.
// Clients that allow bookmarks get one each BookmarkInterval and shortly before the context's deadline.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	core, err := s.newWatcher(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	w := &objects{
		watcher: core, reader: s.reader, keep: s.Memos.listShare(),
		all:     opts.Predicate.Empty() && !sharded(opts.Predicate),
		results: make(chan watch.Event, watchBuffer),
	}
	core.sink = w
	if opts.ProgressNotify {
		s.mu.Lock()
		s.progress[core] = struct{}{}
		s.mu.Unlock()
	}
	go fault.Contained("control/watch", w.run)()
	return w, nil
}

// Stop implements watch.Interface. Buffered events can still be read.
func (w *objects) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *objects) ResultChan() <-chan watch.Event { return w.results }

// run is the watch's goroutine.
func (w *objects) run() {
	defer close(w.results)
	defer w.cancel()
	if w.opts.ProgressNotify {
		defer func() {
			w.s.mu.Lock()
			delete(w.s.progress, w.watcher)
			w.s.mu.Unlock()
		}()
	}
	err := fault.Contain("control/watch", func() error {
		fault.Point("control/watch")
		return w.stream()
	})
	if err == nil || w.ctx.Err() != nil {
		return // the client has left and needs no answer
	}
	w.send(watch.Event{Type: watch.Error, Object: WatchStatus(err)})
}

// existing sends an object that existed at the start of the watch, if it is selected.
func (w *objects) existing(kv *raftstore.KeyValue) error {
	d := w.reader.cached(kv)
	if d == nil {
		var err error
		if d, err = w.reader.decodeNew(w.ctx, kv, kv.ModRevision); err != nil {
			return err
		}
		if w.keep >= d.size {
			w.keep -= d.size
			w.reader.cache(kv, d)
		}
	}
	if w.selects(d.obj) {
		w.send(watch.Event{Type: watch.Added, Object: d.share()})
	}
	return nil
}

// bookmark implements eventSink.
func (w *objects) bookmark(rev int64, initial bool) error {
	obj, err := w.s.bookmark(rev, initial)
	if err == nil {
		w.send(watch.Event{Type: watch.Bookmark, Object: obj})
	}
	return err
}

// caughtUp implements eventSink. It has nothing to do: the channel's reader sees that the channel is empty.
func (w *objects) caughtUp() error { return nil }

// change sends the event that a change of the store is for this watch's selection.
func (w *objects) change(e raftstore.Event) error {
	if e.Type == raftstore.EventDelete {
		return w.deleted(e)
	}
	current, err := w.reader.decodeShared(w.ctx, e.KV)
	if err != nil {
		return err
	}
	is := w.selects(current.obj)
	was := false
	created := e.KV.CreateRevision == e.KV.ModRevision
	if !created && w.all {
		was = true
	} else if !created && e.Prev != nil {
		previous, err := w.reader.decodeShared(w.ctx, e.Prev)
		if err != nil {
			return err
		}
		if was = w.selects(previous.obj); was && !is {
			w.send(watch.Event{Type: watch.Deleted, Object: w.reader.withVersion(previous, e.KV.ModRevision).share()})
			return nil
		}
	}
	switch {
	case is && was:
		w.send(watch.Event{Type: watch.Modified, Object: current.share()})
	case is:
		w.send(watch.Event{Type: watch.Added, Object: current.share()})
	}
	return nil
}

// deleted sends the last state of a deleted object under the revision of the deletion. This object is kept at the
// event's KeyValue, for other watches.
func (w *objects) deleted(e raftstore.Event) error {
	if e.Prev == nil {
		return fmt.Errorf("deletion of %q at revision %d has no previous state", e.KV.Key, e.KV.ModRevision)
	}
	last := w.reader.cached(e.KV)
	if last == nil {
		previous, err := w.reader.decodeShared(w.ctx, e.Prev)
		if err != nil {
			return corruptDeletedError(err)
		}
		last = w.reader.withVersion(previous, e.KV.ModRevision)
		w.reader.cache(e.KV, last)
	}
	if w.selects(last.obj) {
		w.send(watch.Event{Type: watch.Deleted, Object: last.share()})
	}
	return nil
}

// selects applies the predicate. An object whose attributes cannot be read is not selected.
func (w *objects) selects(obj runtime.Object) bool {
	if w.all {
		return true
	}
	ok, err := w.opts.Predicate.Matches(obj)
	return err == nil && ok
}

// send passes on an event, and waits for a slow client.
func (w *objects) send(e watch.Event) {
	select {
	case w.results <- e:
	case <-w.ctx.Done():
	}
}
