package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

const (
	namespaceWatched = "bench-watched"
	watchers         = 1000
	watchersShared   = 50 // on one connection, as the informers of one program; a server allows 100 streams
	watchersTimed    = 10 // one of this many watchers measures latencies
	eventsPerSecond  = 50
	writers          = 8           // so that a slow write does not delay the next one
	watchDrain       = time.Second // how long late events are still measured
)

// audience collects the events of the watchers of one round.
type audience struct {
	each      int // watchers on one connection
	conns     []*load.Conn
	opened    sync.WaitGroup
	joined    sync.WaitGroup
	delivered atomic.Int64

	mu        sync.Mutex
	latencies []float64 // guarded by mu
	failed    error     // guarded by mu
}

// measureWatch returns a family in which many watchers see the writes of one namespace; each connection carries `each`
// watches. Kubelets and controllers have a connection each; the informers of one program share one.
func measureWatch(each int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		b.loaded = true
		for _, f := range forms {
			name := fmt.Sprintf("watch, %s, %d watchers on %d connections × %d events/s", f.Name, watchers, watchers/each, eventsPerSecond)
			b.progress("%s", name)
			for round := range b.rounds {
				for _, s := range b.turns(round) {
					if err := s.namespace(ctx, namespaceWatched); err != nil {
						return err
					}
					if err := b.fanOut(ctx, s, f, name, each); err != nil {
						return fmt.Errorf("%s, %s: %w", name, s.name, err)
					}
				}
			}
		}
		return nil
	}
}

func (b *bench) fanOut(ctx context.Context, s *system, f *form, name string, each int) error {
	conns, err := s.connect(ctx, writers)
	if err != nil {
		return err
	}
	path := load.ConfigMapsPath(namespaceWatched)
	object := newName()
	if err := conns[0].Do(f.request(http.MethodPost, path, f.template.Fill(object, stampNow())), nil); err != nil {
		return err
	}
	a := &audience{each: each}
	if a.conns, err = s.dial(ctx, watchers/each); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	a.opened.Add(len(a.conns))
	for i, c := range a.conns {
		a.joined.Go(func() { a.follow(watching, c, f, i*each) })
	}
	a.opened.Wait()
	pause(ctx, b.window/2) // the initial events have been sent
	window := 3 * b.window
	profiled := b.profile(s, name, window)
	before, cpu, began := a.delivered.Load(), s.cpu(), time.Now()
	sent, err := write(ctx, conns, f, path+"/"+object, object, began.Add(window))
	passed, used, delivered := time.Since(began), s.cpu()-cpu, a.delivered.Load()-before
	pause(ctx, watchDrain)
	stop()
	load.CloseAll(a.conns)
	a.joined.Wait()
	if err := errors.Join(err, a.failed, profiled()); err != nil {
		return err
	}
	b.add(s, name+": written", "/s", strconv.Itoa(eventsPerSecond), float64(sent)/passed.Seconds())
	b.add(s, name+": delivered", "/s", strconv.Itoa(watchers*eventsPerSecond), float64(delivered)/passed.Seconds())
	b.add(s, name+": p50", "ms", "", figures.Quantile(a.latencies, 0.5))
	b.add(s, name+": p99", "ms", aimP99, figures.Quantile(a.latencies, 0.99))
	b.add(s, name+": server CPU", "µs each", aimCPU, float64(used.Nanoseconds())/1e3/float64(max(1, delivered)))
	return nil
}

// stampNow returns the time of a write, which its watchers compare with theirs.
func stampNow() string { return fmt.Sprintf("%0*d", load.StampDigits, time.Now().UnixNano()) }

// follow opens the watches of one connection, the first of which is number first, and counts events until ctx ends.
func (a *audience) follow(ctx context.Context, c *load.Conn, f *form, first int) {
	opened := sync.OnceFunc(a.opened.Done)
	defer opened()
	var mine []float64
	err := func() error {
		streams := make([]*load.Stream, a.each)
		for i := range streams {
			events := &load.Events{Encoding: f.Encoding}
			if (first+i)%watchersTimed == 0 {
				events.Each = func(event []byte) error {
					if sent, err := load.StampOf(event); err == nil { // skips objects that controllers create in every namespace
						mine = append(mine, float64(time.Now().UnixNano()-sent)/1e6)
					}
					return nil
				}
			}
			var err error
			r := f.request(http.MethodGet, load.ConfigMapsPath(namespaceWatched)+"?watch=true&allowWatchBookmarks=true", nil)
			streams[i], err = c.Start(r, func(data []byte) error {
				before := events.Count
				err := events.Write(data)
				a.delivered.Add(int64(events.Count - before))
				return err
			})
			if err != nil {
				return err
			}
			for streams[i].Status == 0 {
				if err := c.Step(); err != nil {
					return err
				}
			}
			if err := streams[i].Err(); err != nil {
				return err
			}
		}
		mine = nil // the initial events are not counted
		opened()
		for {
			if err := c.Step(); err != nil {
				return err
			}
			for _, s := range streams {
				if s.Ended {
					return errors.New("a watch ended")
				}
			}
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latencies = append(a.latencies, mine...)
	if ctx.Err() == nil && a.failed == nil {
		a.failed = err
	}
}

// write updates the object at an even pace until the deadline.
func write(ctx context.Context, conns []*load.Conn, f *form, path, name string, deadline time.Time) (int64, error) {
	writers := make([]func(context.Context) error, len(conns))
	for i, c := range conns {
		writers[i] = func(context.Context) error {
			return c.Do(f.request(http.MethodPut, path, f.template.Fill(name, stampNow())), nil)
		}
	}
	return load.Paced(ctx, eventsPerSecond, deadline, writers)
}

// initialEnd is the annotation of the bookmark that ends the initial events.
var initialEnd = []byte(`k8s.io/initial-events-end`)

// measureWatchList measures watches that begin with many objects.
func measureWatchList(ctx context.Context, b *bench) error {
	b.loaded = true
	for _, s := range b.systems {
		if err := b.makeMany(ctx, s); err != nil {
			return err
		}
	}
	for _, f := range forms {
		for _, level := range []int{1, 16} {
			l := listing{name: fmt.Sprintf("watch that begins with %d objects, %s, %s", many, f.Name, clients(level)), level: level, rounds: b.rounds}
			if err := b.list(ctx, l, func(c *load.Conn) error { return initial(c, f) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// initial reads a watch up to the end of its initial events.
func initial(c *load.Conn, f *form) error {
	path := manyPath + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="
	var tail []byte // end of the data before this piece
	complete := false
	s, err := c.Start(f.request(http.MethodGet, path, nil), func(data []byte) error {
		tail = append(tail, data[:min(len(data), len(initialEnd))]...)
		complete = complete || bytes.Contains(data, initialEnd) || bytes.Contains(tail, initialEnd)
		tail = append(tail[:0], data[max(0, len(data)-len(initialEnd)):]...)
		return nil
	})
	for err == nil && !complete && !s.Ended {
		err = c.Step()
	}
	if err == nil {
		err = s.Err()
	}
	if err == nil && !complete {
		err = errors.New("the watch ended before its initial events did")
	}
	if err != nil {
		return err
	}
	return c.Cancel(s)
}
