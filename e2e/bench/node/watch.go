package main

import (
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
	watchersEach     = 50 // on one connection; a server allows 100 streams
	eventsPerSecond  = 50
	writers          = 8           // so that a slow write does not delay the next one
	watchDrain       = time.Second // how long late events are still measured
)

// measureWatch lets many watchers see the writes of one object.
func measureWatch(ctx context.Context, b *bench) error {
	if err := b.openClients(ctx); err != nil {
		return err
	}
	for _, e := range encodings {
		for range b.rounds {
			for _, s := range b.systems {
				b.progress("watch, %s%s", e.Name, suffix(s))
				if err := fanOut(ctx, b, s, e); err != nil {
					return fmt.Errorf("watch, %s: %w", e.Name, err)
				}
			}
		}
	}
	return nil
}

// audience collects the events of the watchers of one round.
type audience struct {
	opened    sync.WaitGroup
	joined    sync.WaitGroup
	until     atomic.Int64 // nanoseconds; events after it are late
	onTime    atomic.Int64
	mu        sync.Mutex
	latencies []float64
	failed    error
}

func fanOut(ctx context.Context, b *bench, s system, e *load.Encoding) error {
	name := "watched-" + strconv.FormatInt(serial.Add(1), 10)
	if err := b.clients[s][0].do(ctx, e, request{http.MethodPost, load.ConfigMapsPath(namespaceWatched), e.ConfigMap(name, "0", nil)}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var a audience
	a.until.Store(int64(1<<63 - 1))
	a.opened.Add(watchers)
	for i := range watchers {
		c := b.clients[s][1+i/watchersEach]
		a.joined.Go(func() { a.watch(ctx, c, e, name) })
	}
	a.opened.Wait()
	window := 3 * b.window
	cpu, began := figures.CPUTime(s.controlPlane()), time.Now()
	a.until.Store(began.Add(window).UnixNano())
	sent, err := write(ctx, b.clients[s][len(b.clients[s])-writers:], e, name, began.Add(window))
	passed, used := time.Since(began), figures.CPUTime(s.controlPlane())-cpu
	pause(ctx, watchDrain)
	cancel()
	a.joined.Wait()
	if err := errors.Join(err, a.failed); err != nil {
		return err
	}
	prefix := fmt.Sprintf("watch, %s, %d watchers × %d events/s: ", e.Name, watchers, eventsPerSecond)
	b.table.Add(s.side(), figures.Of(prefix+"written", "/s", strconv.Itoa(eventsPerSecond)), float64(sent)/passed.Seconds())
	b.table.Add(s.side(), figures.Of(prefix+"delivered", "/s", strconv.Itoa(watchers*eventsPerSecond)), float64(a.onTime.Load())/window.Seconds())
	b.table.Add(s.side(), figures.Of(prefix+"p50", "ms", ""), figures.Quantile(a.latencies, 0.5))
	b.table.Add(s.side(), figures.Of(prefix+"p99", "ms", ""), figures.Quantile(a.latencies, 0.99))
	b.table.Add(s.side(), figures.Of(prefix+"server CPU", "µs each", "ratio 0.333"), float64(used.Nanoseconds())/1e3/float64(max(1, a.onTime.Load())))
	return nil
}

// write updates the object at an even pace until the deadline.
func write(ctx context.Context, clients []*client, e *load.Encoding, name string, deadline time.Time) (int64, error) {
	path := load.ConfigMapsPath(namespaceWatched) + "/" + name
	writers := make([]func(context.Context) error, len(clients))
	for i, c := range clients {
		writers[i] = func(ctx context.Context) error {
			body := e.ConfigMap(name, strconv.FormatInt(time.Now().UnixNano(), 10), nil)
			return c.do(ctx, e, request{http.MethodPut, path, body})
		}
	}
	return load.Paced(ctx, eventsPerSecond, deadline, writers)
}

// watch reads events until ctx ends. The first event is the object's former state.
func (a *audience) watch(ctx context.Context, c *client, e *load.Encoding, name string) {
	opened := sync.OnceFunc(a.opened.Done)
	defer opened()
	var mine []float64
	path := load.ConfigMapsPath(namespaceWatched) + "?watch=true&fieldSelector=metadata.name%3D" + name
	err := func() error {
		body, err := c.open(ctx, e, request{http.MethodGet, path, nil})
		if err != nil {
			return err
		}
		defer body.Close()
		first := true
		events := &load.Events{Encoding: e, Each: func(event []byte) error {
			if first {
				first = false
				opened()
				return nil
			}
			now := time.Now().UnixNano()
			sent, err := load.StampOf(event)
			if now <= a.until.Load() {
				a.onTime.Add(1)
			}
			mine = append(mine, float64(now-sent)/1e6)
			return err
		}}
		piece := make([]byte, 4096)
		for {
			n, err := body.Read(piece)
			if err := errors.Join(events.Write(piece[:n]), err); err != nil {
				return err
			}
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latencies = append(a.latencies, mine...)
	if ctx.Err() == nil && a.failed == nil {
		a.failed = fmt.Errorf("a watch ended: %w", err)
	}
}
