package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/balsahq/balsa/raftstore"
)

const (
	// watchBuffer is how many events wait for a slow client before its watch
	// stops reading the ring. When the ring has gone round once without it, the
	// watch ends with 410 Gone.
	watchBuffer = 100
	// lastBookmark is how long before its deadline a watch sends a bookmark, so
	// that the client resumes from a fresh version.
	lastBookmark = 2 * time.Second
)

// watcher is one watch.
type watcher struct {
	s       *store
	reader  *reader
	key     string // a prefix when recursive
	opts    storage.ListOptions
	all     bool // the predicate selects everything
	results chan watch.Event
	ctx     context.Context // ends the watch; belongs to the watcher
	cancel  context.CancelFunc

	// rev is the revision everything up to which has been sent or is not for
	// this watch. Only the watch's goroutine uses it.
	rev int64
	// bookmarked is rev as the client last learnt it.
	bookmarked int64
	// poked asks for a bookmark now; wake ends the current wait for events, nil
	// while there is none.
	poked atomic.Bool
	wake  atomic.Pointer[context.CancelFunc]
}

// Watch implements storage.Interface. With resourceVersion "" or "0", or with
// SendInitialEvents, the objects there are come first, as ADDED; where
// bookmarks are allowed too, SendInitialEvents marks their end with one.
// Clients that allow bookmarks get one from time to time and shortly before the
// context's deadline.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, err := s.key(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rev, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if opts.Recursive && !strings.HasSuffix(key, "/") {
		return nil, errors.New(`recursive key needs to end with "/"`)
	}
	if opts.ProgressNotify && s.NewFunc == nil {
		return nil, apierrors.NewInternalError(errors.New("progressNotify for watch is unsupported because no newFunc was provided"))
	}
	w := &watcher{
		s: s, reader: s.reader, key: key, opts: opts,
		all:     opts.Predicate.Empty() && !sharded(opts.Predicate),
		results: make(chan watch.Event, watchBuffer),
		rev:     int64(rev),
	}
	if rev == 0 && !w.initialEvents() {
		// Only what comes from now on: "now" is before this call returns.
		view, err := s.view(ctx, opts.ResourceVersion)
		if err != nil {
			return nil, err
		}
		w.rev = view.Revision()
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if opts.ProgressNotify {
		s.mu.Lock()
		s.progress[w] = struct{}{}
		s.mu.Unlock()
	}
	go w.run()
	return w, nil
}

// initialEvents reports whether the objects there are come first.
func (w *watcher) initialEvents() bool {
	if w.opts.SendInitialEvents != nil {
		return *w.opts.SendInitialEvents
	}
	return w.opts.ResourceVersion == "" || w.opts.ResourceVersion == "0"
}

// Stop implements watch.Interface. Events already waiting can still be read.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// interrupt makes the watch send a bookmark now.
func (w *watcher) interrupt() {
	w.poked.Store(true)
	if wake := w.wake.Load(); wake != nil {
		(*wake)()
	}
}

// run is the watch's goroutine.
func (w *watcher) run() {
	defer close(w.results)
	defer w.cancel()
	if w.opts.ProgressNotify {
		defer func() {
			w.s.mu.Lock()
			delete(w.s.progress, w)
			w.s.mu.Unlock()
		}()
	}
	err := w.stream()
	if err == nil || w.ctx.Err() != nil {
		return // the client has left; it is owed nothing
	}
	w.send(watch.Event{Type: watch.Error, Object: watchError(err)})
}

// stream sends everything until the client leaves or an error ends the watch.
func (w *watcher) stream() error {
	// Flow control counts the start of a watch as expensive; it is over when
	// the initial events are sent, or never will be.
	defer utilflowcontrol.WatchInitialized(w.ctx)
	var view *raftstore.View
	if w.initialEvents() {
		var err error
		if view, err = w.newestView(); err != nil {
			return err
		}
		w.rev = view.Revision()
	}
	// The cursor comes first: what happens while the initial events are sent
	// waits in the ring.
	cursor, err := w.cursor()
	if err != nil {
		return err
	}
	defer cursor.Close()
	if view != nil {
		if err := w.sendInitial(view); err != nil {
			return err
		}
	}
	utilflowcontrol.WatchInitialized(w.ctx)
	return w.follow(cursor)
}

// newestView is the state the initial events show. A version asked for is a
// lower bound.
func (w *watcher) newestView() (*raftstore.View, error) {
	view, err := w.s.view(w.ctx, w.opts.ResourceVersion)
	if storage.IsTooLargeResourceVersion(err) {
		return nil, storage.NewTooLargeResourceVersionError(uint64(w.rev), uint64(w.s.kv.View().Revision()), 1+rand.IntN(3))
	}
	return view, err
}

// cursor opens the store's watch after w.rev.
func (w *watcher) cursor() (*raftstore.Watcher, error) {
	req := raftstore.WatchRequest{Key: w.key, StartRevision: w.rev + 1}
	if w.opts.Recursive {
		req.RangeEnd = raftstore.PrefixEnd(w.key)
	}
	return w.s.kv.Watch(req)
}

// sendInitial sends the objects there are, and the mark of their end if it was
// asked for.
func (w *watcher) sendInitial(view *raftstore.View) error {
	var err error
	keep := w.s.Memos.listShare()
	one := func(kv *raftstore.KeyValue) bool {
		err = w.sendExisting(kv, &keep)
		return err == nil && w.ctx.Err() == nil
	}
	if w.opts.Recursive {
		view.Ascend(w.key, raftstore.PrefixEnd(w.key), one)
	} else if kv := view.Get(w.key); kv != nil {
		one(kv)
	}
	if err != nil || w.opts.SendInitialEvents == nil || !w.opts.Predicate.AllowWatchBookmarks {
		return err
	}
	return w.bookmark(true)
}

// sendExisting sends an object there is, if it is selected; keep is how many
// encoded bytes this watch may still add to what is kept decoded.
func (w *watcher) sendExisting(kv *raftstore.KeyValue, keep *int) error {
	d := w.reader.recall(kv)
	if d == nil {
		var err error
		if d, err = w.reader.fresh(w.ctx, kv, kv.ModRevision); err != nil {
			return err
		}
		if *keep >= d.size {
			*keep -= d.size
			w.reader.remember(kv, d)
		}
	}
	if w.selects(d.obj) {
		w.send(watch.Event{Type: watch.Added, Object: d.share()})
	}
	return nil
}

// follow sends changes and bookmarks until there is an error.
func (w *watcher) follow(cursor *raftstore.Watcher) error {
	w.bookmarked = w.rev
	for {
		if err := w.followUntil(w.nextBookmark(), cursor); err != nil {
			return err
		}
		if w.poked.Swap(false) {
			w.bookmarked = 0 // asked for, even if it says nothing new
		}
		if err := w.bookmark(false); err != nil {
			return err
		}
	}
}

// followUntil sends changes until a bookmark is due or asked for.
func (w *watcher) followUntil(due time.Time, cursor *raftstore.Watcher) error {
	wait, cancel := w.wait(due)
	defer cancel()
	for {
		batch, err := cursor.Next(wait)
		switch {
		case w.ctx.Err() != nil:
			return w.ctx.Err()
		case err == nil:
		case wait.Err() != nil && errors.Is(err, wait.Err()):
			w.rev = max(w.rev, cursor.Progress())
		default:
			return err
		}
		for _, e := range batch.Events {
			if e.KV.ModRevision <= w.rev {
				continue // the start asked for was in the future
			}
			if err := w.change(e); err != nil {
				return err
			}
		}
		w.rev = max(w.rev, batch.Revision)
		if wait.Err() != nil {
			return w.ctx.Err()
		}
	}
}

// wait returns the context of waiting for events, which ends when a bookmark is
// due.
func (w *watcher) wait(due time.Time) (context.Context, context.CancelFunc) {
	if due.IsZero() {
		return w.ctx, func() {}
	}
	ctx, cancel := context.WithDeadline(w.ctx, due)
	if w.opts.ProgressNotify {
		w.wake.Store(&cancel)
		if w.poked.Load() {
			cancel() // asked between two waits
		}
	}
	return ctx, cancel
}

// nextBookmark says when the next bookmark is due, zero for never. Watches are
// spread a little so that those started together do not all send at once.
func (w *watcher) nextBookmark() time.Time {
	if w.s.NewFunc == nil {
		return time.Time{}
	}
	now := time.Now()
	var next time.Time
	switch {
	case w.opts.ProgressNotify:
		next = now.Add(w.s.ProgressInterval)
	case w.opts.Predicate.AllowWatchBookmarks:
		next = now.Add(w.s.BookmarkInterval + rand.N(w.s.BookmarkInterval/10+1))
	default:
		return next
	}
	if deadline, ok := w.ctx.Deadline(); ok {
		if last := deadline.Add(-lastBookmark); last.After(now) && last.Before(next) {
			return last
		}
	}
	return next
}

// bookmark tells the client the revision it has seen everything of, unless it
// knows; initial marks the end of the initial events, which is always sent.
func (w *watcher) bookmark(initial bool) error {
	if w.s.NewFunc == nil || (!initial && w.rev <= w.bookmarked) {
		return nil
	}
	obj := w.s.NewFunc()
	if err := w.reader.versioner.UpdateObject(obj, uint64(w.rev)); err != nil {
		return fmt.Errorf("failed to propagate object resource version: %w", err)
	}
	if initial {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return fmt.Errorf("error while accessing object's metadata of %s: %w", w.s.GroupResource, err)
		}
	}
	w.bookmarked = w.rev
	w.send(watch.Event{Type: watch.Bookmark, Object: obj})
	return nil
}

// change sends what a change of the store means to this watch.
func (w *watcher) change(e raftstore.Event) error {
	if e.Type == raftstore.EventDelete {
		return w.deleted(e)
	}
	current, err := w.reader.shared(w.ctx, e.KV)
	if err != nil {
		return err
	}
	is := w.selects(current.obj)
	was := false
	created := e.KV.CreateRevision == e.KV.ModRevision
	if !created && w.all {
		was = true
	} else if !created && e.Prev != nil {
		previous, err := w.reader.shared(w.ctx, e.Prev)
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

// deleted sends the last state of a deleted object under the revision of the
// deletion. That form of it is kept beside the event.
func (w *watcher) deleted(e raftstore.Event) error {
	if e.Prev == nil {
		return fmt.Errorf("deletion of %q at revision %d has no previous state", e.KV.Key, e.KV.ModRevision)
	}
	last := w.reader.recall(e.KV)
	if last == nil {
		previous, err := w.reader.shared(w.ctx, e.Prev)
		if err != nil {
			return corruptDeletedError(err)
		}
		last = w.reader.withVersion(previous, e.KV.ModRevision)
		w.reader.remember(e.KV, last)
	}
	if w.selects(last.obj) {
		w.send(watch.Event{Type: watch.Deleted, Object: last.share()})
	}
	return nil
}

// selects applies the predicate. An object whose attributes cannot be had is
// not selected.
func (w *watcher) selects(obj runtime.Object) bool {
	if w.all {
		return true
	}
	ok, err := w.opts.Predicate.Matches(obj)
	return err == nil && ok
}

// send hands over an event, waiting for a slow client.
func (w *watcher) send(e watch.Event) {
	select {
	case w.results <- e:
	case <-w.ctx.Done():
	}
}
