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
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/balsahq/balsa/raftstore"
)

// finalBookmarkLead is how long before its deadline a watch sends a last bookmark, so that the client resumes from a
// recent version.
const finalBookmarkLead = 2 * time.Second

// eventSink receives the events of a watch, in order, from one goroutine. Its errors end the watch.
type eventSink interface {
	existing(kv *raftstore.KeyValue) error
	change(e raftstore.Event) error
	// bookmark: every event up to rev has been sent; initial: the objects that existed at the start have all been sent.
	bookmark(rev int64, initial bool) error
	// caughtUp: no further event is waiting.
	caughtUp() error
}

// watcher is the common part of a watch, below eventSink.
type watcher struct {
	s      *store
	key    string // a prefix when recursive
	opts   storage.ListOptions
	sink   eventSink
	ctx    context.Context // ends the watch; belongs to the watcher
	cancel context.CancelFunc

	// rev: all events up to this revision have been sent, or are not selected. Only the watch's goroutine uses it.
	rev int64
	// bookmarked is the revision of the last bookmark.
	bookmarked int64
	// bookmarkRequested asks for a bookmark now. wake ends the current wait for events; it is nil when there is none.
	bookmarkRequested atomic.Bool
	wake              atomic.Pointer[context.CancelFunc]
}

// newWatcher returns a watch of key that does not run yet.
func (s *store) newWatcher(ctx context.Context, key string, opts storage.ListOptions) (*watcher, error) {
	key, err := s.key(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rev, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if opts.Recursive && !strings.HasSuffix(key, "/") {
		return nil, errors.New(`recursive key needs to end with "/"`)
	}
	if opts.ProgressNotify && s.NewFunc == nil {
		return nil, apierrors.NewInternalError(errors.New("progressNotify for watch is unsupported because no newFunc was provided"))
	}
	w := &watcher{s: s, key: key, opts: opts, rev: int64(rev)}
	if rev == 0 && !w.initialEvents() {
		// The watch sends only changes after this call, so "now" is fixed here.
		view, err := s.view(ctx, opts.ResourceVersion)
		if err != nil {
			return nil, err
		}
		w.rev = view.Revision()
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	return w, nil
}

// initialEvents reports whether the watch sends the existing objects first.
func (w *watcher) initialEvents() bool {
	if w.opts.SendInitialEvents != nil {
		return *w.opts.SendInitialEvents
	}
	return w.opts.ResourceVersion == "" || w.opts.ResourceVersion == "0"
}

// requestBookmark makes the watch send a bookmark now, from any goroutine.
func (w *watcher) requestBookmark() {
	w.bookmarkRequested.Store(true)
	if wake := w.wake.Load(); wake != nil {
		(*wake)()
	}
}

// stream sends all events until the client leaves or an error ends the watch.
func (w *watcher) stream() error {
	// Flow control counts the start of a watch as expensive. The start is over when the initial events are sent, or
	// when the watch ends before that.
	defer utilflowcontrol.WatchInitialized(w.ctx)
	var view *raftstore.View
	if w.initialEvents() {
		var err error
		if view, err = w.newestView(); err != nil {
			return err
		}
		w.rev = view.Revision()
	}
	// Open the cursor first: changes during the initial events wait in the ring.
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

// newestView returns the state for the initial events, at the requested version or later.
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

// sendInitial sends the existing objects, and the bookmark that marks their end if it was requested.
func (w *watcher) sendInitial(view *raftstore.View) error {
	var err error
	one := func(kv *raftstore.KeyValue) bool {
		err = w.sink.existing(kv)
		return err == nil && w.ctx.Err() == nil
	}
	if w.opts.Recursive {
		view.Ascend(w.key, raftstore.PrefixEnd(w.key), one)
	} else if kv := view.Get(w.key); kv != nil {
		one(kv)
	}
	if err == nil && w.opts.SendInitialEvents != nil && w.opts.Predicate.AllowWatchBookmarks {
		err = w.bookmark(true)
	}
	if err != nil {
		return err
	}
	return w.sink.caughtUp()
}

// follow sends changes and bookmarks until there is an error.
func (w *watcher) follow(cursor *raftstore.Watcher) error {
	w.bookmarked = w.rev
	for {
		if err := w.followUntil(w.nextBookmark(), cursor); err != nil {
			return err
		}
		if w.bookmarkRequested.Swap(false) {
			w.bookmarked = 0 // a requested bookmark is sent even if the client knows the revision
		}
		if err := w.bookmark(false); err != nil {
			return err
		}
	}
}

// followUntil sends changes until due, or until a bookmark is requested.
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
				continue // the requested start was in the future, and this change is before it
			}
			if err := w.sink.change(e); err != nil {
				return err
			}
		}
		if len(batch.Events) > 0 {
			if err := w.sink.caughtUp(); err != nil {
				return err
			}
		}
		w.rev = max(w.rev, batch.Revision)
		if wait.Err() != nil {
			return w.ctx.Err()
		}
	}
}

// wait returns a context that ends when the next bookmark is due or requested.
func (w *watcher) wait(due time.Time) (context.Context, context.CancelFunc) {
	if due.IsZero() {
		return w.ctx, func() {}
	}
	ctx, cancel := context.WithDeadline(w.ctx, due)
	if w.opts.ProgressNotify {
		w.wake.Store(&cancel)
		if w.bookmarkRequested.Load() {
			cancel() // requested between two waits
		}
	}
	return ctx, cancel
}

// nextBookmark returns the time of the next bookmark, zero for never. A random tenth is added, so that watches that
// started together do not all send at once.
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
		if last := deadline.Add(-finalBookmarkLead); last.After(now) && last.Before(next) {
			return last
		}
	}
	return next
}

// bookmark sends the current revision, unless the client knows it already. initial marks the end of the initial events;
// that bookmark is always sent.
func (w *watcher) bookmark(initial bool) error {
	if w.s.NewFunc == nil || (!initial && w.rev <= w.bookmarked) {
		return nil
	}
	w.bookmarked = w.rev
	if err := w.sink.bookmark(w.rev, initial); err != nil || initial {
		return err
	}
	return w.sink.caughtUp()
}

// bookmark makes the object of a bookmark.
func (s *store) bookmark(rev int64, initial bool) (runtime.Object, error) {
	obj := s.NewFunc()
	if err := s.versioner.UpdateObject(obj, uint64(rev)); err != nil {
		return nil, fmt.Errorf("failed to propagate object resource version: %w", err)
	}
	if initial {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return nil, fmt.Errorf("error while accessing object's metadata of %s: %w", s.GroupResource, err)
		}
	}
	return obj, nil
}
