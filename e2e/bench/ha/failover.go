package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/balsahq/balsa/e2e/quorum"
)

const (
	pace        = 5 * time.Millisecond
	attempt     = 2 * time.Second // limit of one request
	outstanding = 2000            // limit of concurrent writes
	calm        = time.Second     // the gap is over after this time of acknowledged writes
	giveUp      = 20 * time.Second
)

// writer starts writes at an even pace, whether or not earlier writes succeed. A failed write is tried once more, at
// the next server.
type writer struct {
	clients []*clientv3.Client
	current atomic.Int64
	failed  atomic.Int64
	name    string

	mu   sync.Mutex
	acks []time.Time
}

func (w *writer) write(ctx context.Context) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	slots := make(chan struct{}, outstanding)
	var joined sync.WaitGroup
	defer joined.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		joined.Go(func() {
			defer func() { <-slots }()
			w.one(w.name + "/" + strconv.Itoa(n%100))
		})
	}
}

func (w *writer) one(key string) {
	for try := range 2 {
		at := w.current.Load()
		ctx, cancel := context.WithTimeout(context.Background(), attempt)
		_, err := w.clients[at].Put(ctx, key, "x")
		cancel()
		if err == nil {
			w.mu.Lock()
			w.acks = append(w.acks, time.Now())
			w.mu.Unlock()
			return
		}
		w.current.CompareAndSwap(at, (at+1)%int64(len(w.clients)))
		if try == 1 {
			w.failed.Add(1)
		}
	}
}

// gap returns the longest time without an acknowledged write since a moment; over reports that the gap ended a while
// ago.
func (w *writer) gap(since time.Time) (longest time.Duration, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ended := since, since
	for _, t := range w.acks {
		if t.Before(since) {
			continue
		}
		if d := t.Sub(last); d > longest {
			longest, ended = d, t
		}
		last = t
	}
	waiting := time.Since(last)
	return max(longest, waiting), waiting < calm/2 && time.Since(ended) > calm
}

// measureFailover kills leaders under two writers: a client of the leader and a client of another server.
func measureFailover(ctx context.Context, b *bench) error {
	for run := range b.runs {
		for _, s := range b.systems {
			b.progress("failover %d, %s", run+1, s.name)
			if err := b.failover(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (b *bench) failover(ctx context.Context, s *system) error {
	leader, clients, err := b.settled(ctx, s)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	writing, stop := context.WithCancel(ctx)
	defer stop()
	writers := []*writer{{clients: clients, name: "leader"}, {clients: clients, name: "other"}}
	writers[0].current.Store(int64(leader))
	writers[1].current.Store(int64((leader + 1) % s.Size()))
	var joined sync.WaitGroup
	for _, w := range writers {
		joined.Go(func() { w.write(writing) })
	}
	quorum.Pause(ctx, time.Second)
	killed := time.Now()
	if err := s.Process(leader).Kill9(); err != nil {
		return err
	}
	for done := false; !done && time.Since(killed) < giveUp && ctx.Err() == nil; {
		quorum.Pause(ctx, 50*time.Millisecond)
		_, first := writers[0].gap(killed)
		_, second := writers[1].gap(killed)
		done = first && second
	}
	leaderGap, _ := writers[0].gap(killed)
	otherGap, _ := writers[1].gap(killed)
	stop()
	joined.Wait()
	if err := s.Start(ctx, leader); err != nil {
		return err
	}
	b.add(s, "leader killed: gap in writes of its client", "s", "0.5, never over 1", leaderGap.Seconds())
	b.add(s, "leader killed: gap in writes of another's client", "s", "0.5, never over 1", otherGap.Seconds())
	b.add(s, "leader killed: writes that failed twice, of 400 a second", "", "0", float64(writers[0].failed.Load()+writers[1].failed.Load()))
	return nil
}

// settled waits until all servers serve and one leads, and returns a client of each.
func (b *bench) settled(ctx context.Context, s *system) (leader int, clients []*clientv3.Client, err error) {
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := range s.Size() {
		if err := s.Ready(waiting, i); err != nil {
			return 0, nil, err
		}
	}
	quorum.Pause(ctx, time.Second)
	if leader, err = s.Leader(waiting); err != nil {
		return 0, nil, err
	}
	for i := range s.Size() {
		c, err := s.Client(s.Endpoint(i))
		if err != nil {
			closeAll(clients)
			return 0, nil, err
		}
		clients = append(clients, c)
		if _, err := c.Get(waiting, "warm"); err != nil { // opens the connection
			closeAll(clients)
			return 0, nil, err
		}
	}
	return leader, clients, nil
}

func closeAll(clients []*clientv3.Client) {
	for _, c := range clients {
		c.Close()
	}
}
