package etcd

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// noWatch is the ID in an answer that concerns no watch or all watches.
	noWatch = -1
	// requestQueue bounds the unanswered requests of a client.
	requestQueue = 16
	// progressRounds bounds the attempts to bring every watch of a stream to one revision for a progress request before
	// events have priority again.
	progressRounds = 8
)

// watchService is etcd's Watch service.
type watchService struct{ *Server }

// Watch implements etcdserverpb.WatchServer.
func (s *watchService) Watch(stream pb.Watch_WatchServer) error {
	ctx := stream.Context()
	if err := s.authorize(ctx); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.streams.Done()
	w := &watchStream{
		Server:   s.Server,
		stream:   stream,
		requests: make(chan *pb.WatchRequest, requestQueue),
		failed:   make(chan error, 1),
		wake:     make(chan struct{}, 1),
		watches:  make(map[int64]*watch),
	}
	// It ends when the stream's context does, which is when this returns.
	go func() {
		if err := fault.Do("control/etcd", func() { w.receive(ctx) }); err != nil {
			w.failed <- err
		}
	}()
	defer w.close()
	return w.run(ctx)
}

// watch is one watch of a stream.
type watch struct {
	stream     *watchStream
	id         int64
	start, end string // in the store
	at         int    // place among the watches of its range; of the index

	cursor           *raftstore.Watcher
	noPut, noDelete  bool
	prevKV, fragment bool
	progress         bool        // the client wants progress notifications
	spoken           bool        // something was sent since the last time
	queued           atomic.Bool // is in stream.ready
}

// watchStream is one stream of watches. One goroutine runs it and does all the sending; another only receives. Events for a
// slow client stay in the store's history, and a watch that falls behind the history is ended.
type watchStream struct {
	*Server
	stream   pb.Watch_WatchServer
	requests chan *pb.WatchRequest
	failed   chan error // from receive, before it ends
	wake     chan struct{}

	mu    sync.Mutex
	ready []*watch // have something to return

	// Of the goroutine that runs the stream.
	watches   map[int64]*watch
	spare     []*watch // the other buffer of ready
	nextID    int64
	delivered int64 // highest revision in a header sent with events
	owed      bool  // a progress request waits for an answer
	out       batch
}

func (s *watchStream) receive(ctx context.Context) {
	for {
		r, err := s.stream.Recv()
		if err != nil {
			s.failed <- err
			return
		}
		select {
		case s.requests <- r:
		case <-ctx.Done():
			return
		}
	}
}

// push marks w as ready. It may be called from any goroutine.
func (s *watchStream) push(w *watch) {
	if w.queued.Swap(true) {
		return
	}
	s.mu.Lock()
	s.ready = append(s.ready, w)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *watchStream) run(ctx context.Context) error {
	lost := s.lonely.lost(ctx)
	tick := time.NewTicker(s.cfg.ProgressInterval)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return ended(ctx.Err())
		case <-s.done:
			return rpctypes.ErrGRPCStopped
		case <-lost:
			return rpctypes.ErrGRPCNoLeader
		case err = <-s.failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case r := <-s.requests:
			err = s.request(r)
		case <-s.wake:
			err = s.deliver()
		case <-tick.C:
			err = s.report()
		}
		if err == nil && s.owed {
			err = s.progress()
		}
		if err != nil {
			return err
		}
	}
}

func (s *watchStream) close() {
	for _, w := range s.watches {
		s.forget(w)
	}
}

func (s *watchStream) forget(w *watch) {
	delete(s.watches, w.id)
	s.index.remove(w)
	w.cursor.Close()
}

func (s *watchStream) request(r *pb.WatchRequest) error {
	switch u := r.GetRequestUnion().(type) {
	case *pb.WatchRequest_CreateRequest:
		if u.CreateRequest != nil {
			return s.create(u.CreateRequest)
		}
	case *pb.WatchRequest_CancelRequest:
		w := s.watches[u.CancelRequest.GetWatchId()]
		if u.CancelRequest == nil || w == nil {
			return nil
		}
		s.forget(w)
		return s.send(&pb.WatchResponse{WatchId: w.id, Canceled: true}, s.store.View().Revision())
	case *pb.WatchRequest_ProgressRequest:
		s.owed = true
	}
	return nil
}

func (s *watchStream) send(r *pb.WatchResponse, revision int64) error {
	r.Header = s.header(new(pb.ResponseHeader), revision)
	return s.stream.Send(r)
}

// create starts a watch, or answers why not.
func (s *watchStream) create(r *pb.WatchCreateRequest) error {
	w := &watch{stream: s, prevKV: r.PrevKv, fragment: r.Fragment, progress: r.ProgressNotify}
	for _, f := range r.Filters {
		w.noPut = w.noPut || f == pb.WatchCreateRequest_NOPUT
		w.noDelete = w.noDelete || f == pb.WatchCreateRequest_NODELETE
	}
	if len(r.Key) == 0 {
		r.Key = []byte{0}
	}
	w.start, w.end = s.space.span(r.Key, r.RangeEnd)
	now := s.store.View()
	if reason := s.refusal(w, r); reason != "" {
		return s.send(&pb.WatchResponse{WatchId: noWatch, Created: true, Canceled: true, CancelReason: reason}, now.Revision())
	}
	w.id = r.WatchId
	if w.id == 0 {
		for s.watches[s.nextID] != nil {
			s.nextID++
		}
		w.id = s.nextID
		s.nextID++
	}
	own, physical := s.compacted(now)
	cursor, err := s.store.Watch(raftstore.WatchRequest{Key: w.start, RangeEnd: w.end, StartRevision: r.StartRevision})
	if errors.Is(err, raftstore.ErrCompacted) || err == nil && r.StartRevision > 0 && r.StartRevision < own {
		if err == nil {
			cursor.Close()
		}
		return s.createdCompacted(w.id, max(own, physical+1))
	}
	if err != nil {
		return s.send(&pb.WatchResponse{WatchId: noWatch, Created: true, Canceled: true, CancelReason: err.Error()}, now.Revision())
	}
	w.cursor = cursor
	s.watches[w.id] = w
	s.index.add(w)
	s.push(w) // there may be a past to deliver
	return s.send(&pb.WatchResponse{WatchId: w.id, Created: true}, min(cursor.Progress(), s.store.View().Revision()))
}

// refusal returns why a watch is refused, in etcd's words where etcd has them.
func (s *watchStream) refusal(w *watch, r *pb.WatchCreateRequest) string {
	switch {
	case w.end != "" && w.start >= w.end:
		return "mvcc: watcher range is empty"
	case r.WatchId != 0 && s.watches[r.WatchId] != nil:
		return "mvcc: duplicate watch ID provided on the WatchStream"
	case r.StartRevision < 0:
		return rpctypes.ErrCompacted.Error()
	case len(s.watches) >= s.cfg.MaxWatches:
		return "etcd API: too many watches on one stream"
	}
	return ""
}

// createdCompacted answers the creation of a watch from a compacted revision: it is created and canceled at once.
func (s *watchStream) createdCompacted(id, oldest int64) error {
	now := s.store.View().Revision()
	if err := s.send(&pb.WatchResponse{WatchId: id, Created: true}, now); err != nil {
		return err
	}
	return s.send(&pb.WatchResponse{WatchId: id, Canceled: true, CompactRevision: oldest}, now)
}

// elapsed is an ended context: with it a cursor returns the available events and does not wait.
var elapsed = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// deliver sends the events of all ready watches.
func (s *watchStream) deliver() error {
	s.mu.Lock()
	ready := s.ready
	s.ready = s.spare[:0]
	s.mu.Unlock()
	var failed error
	for i, w := range ready {
		ready[i] = nil
		// First, so that an event that comes now makes it ready again.
		w.queued.Store(false)
		if failed == nil && s.watches[w.id] == w {
			failed = s.pull(w)
		}
	}
	s.spare = ready[:0]
	return failed
}

// pull sends one batch of a watch. A watch that may have more is ready again,
// behind the others.
func (s *watchStream) pull(w *watch) error {
	b, err := w.cursor.Next(elapsed)
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		return nil // nothing there
	case errors.Is(err, raftstore.ErrClosed):
		return rpctypes.ErrGRPCStopped
	default:
		s.forget(w)
		_, physical := s.compacted(s.store.View())
		return s.send(&pb.WatchResponse{
			WatchId: w.id, Canceled: true, CompactRevision: physical + 1,
			CancelReason: "etcd API: the watcher was too slow, the events it has not read are compacted: " + err.Error(),
		}, s.store.View().Revision())
	}
	if len(b.Events) >= 64 {
		s.push(w)
	}
	if err := s.out.send(s, w, b); err != nil {
		return err
	}
	w.spoken = true
	s.delivered = max(s.delivered, b.Revision)
	return nil
}

// progress answers a progress request: a revision up to which every watch of
// the stream has delivered, not lower than any that was delivered.
func (s *watchStream) progress() error {
	for range progressRounds {
		rev := s.store.View().Revision()
		for _, w := range s.watches {
			p := w.cursor.Progress()
			if p < s.delivered {
				s.push(w)
			}
			rev = min(rev, p)
		}
		if len(s.watches) == 0 {
			s.owed = false // there is no watch to report progress for
			return nil
		}
		if rev >= s.delivered {
			s.owed = false
			return s.send(&pb.WatchResponse{WatchId: noWatch}, rev)
		}
		if err := s.deliver(); err != nil {
			return err
		}
	}
	return nil // after the next event or request
}

// report sends progress notifications to the watches that want them and got no event since the last time.
func (s *watchStream) report() error {
	now := s.store.View().Revision()
	for _, w := range s.watches {
		if !w.progress {
			continue
		}
		p := w.cursor.Progress()
		if p > now || w.spoken {
			w.spoken = false // not begun yet, or not quiet
			continue
		}
		if err := s.send(&pb.WatchResponse{WatchId: w.id}, p); err != nil {
			return err
		}
	}
	return nil
}
