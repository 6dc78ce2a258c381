package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/balsahq/balsa/e2e/history"
	"github.com/balsahq/balsa/e2e/quorum"
)

// watcher follows all changes from revision 1 on, at one server or at all of them in turns; it resumes each time at the
// next revision.
type watcher struct {
	r       *run
	name    string
	servers []int

	mu     sync.Mutex
	events []history.Event
	next   int64 // the first revision that was not received yet
	fault  error
}

const (
	roam          = 1500 * time.Millisecond // how long a roaming watcher stays at a server
	askProgress   = 700 * time.Millisecond
	watchPatience = 20 * time.Second
)

func (r *run) watchers() []*watcher {
	all := make([]int, r.servers)
	out := []*watcher{}
	for i := range all {
		all[i] = i
		out = append(out, &watcher{r: r, name: fmt.Sprintf("of server %d", i), servers: []int{i}, next: 1})
	}
	return append(out, &watcher{r: r, name: "of all servers in turns", servers: all, next: 1})
}

func keyValue(kv *mvccpb.KeyValue) history.KV {
	return history.KV{Key: string(kv.Key), Value: string(kv.Value), Create: kv.CreateRevision, Mod: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
}

func (w *watcher) follow(ctx context.Context) {
	for turn := 0; ctx.Err() == nil && w.failed() == nil; turn++ {
		server := w.servers[turn%len(w.servers)]
		stay, cancel := context.WithCancel(ctx)
		if len(w.servers) > 1 {
			stay, cancel = context.WithTimeout(ctx, roam)
		}
		w.stay(stay, server)
		cancel()
		quorum.Pause(ctx, 20*time.Millisecond)
	}
}

func (w *watcher) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault
}

// stay watches one server until the stream ends. It requests progress now and then; the server also sends progress by
// itself.
func (w *watcher) stay(ctx context.Context, server int) {
	client, err := w.r.cluster.Client(w.r.cluster.Endpoint(server))
	if err != nil {
		return
	}
	defer client.Close()
	w.mu.Lock()
	next := w.next
	w.mu.Unlock()
	stream := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(next), clientv3.WithPrevKV(), clientv3.WithProgressNotify())
	ask := time.NewTicker(askProgress)
	defer ask.Stop()
	for {
		select {
		case resp, ok := <-stream:
			if !ok {
				return
			}
			if err := w.take(&resp, server); err != nil {
				return
			}
		case <-ask.C:
			_ = client.RequestProgress(ctx)
		}
	}
}

func (w *watcher) take(resp *clientv3.WatchResponse, server int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if resp.CompactRevision != 0 {
		w.fault = fmt.Errorf("watcher %s: server %d has compacted up to %d, revision %d is not there any more", w.name, server, resp.CompactRevision, w.next)
		return w.fault
	}
	if err := resp.Err(); err != nil {
		return err
	}
	now := w.r.now()
	if resp.IsProgressNotify() {
		w.events = append(w.events, history.Event{Progress: true, Revision: resp.Header.Revision, Seen: now, Endpoint: server})
		return nil
	}
	for _, e := range resp.Events {
		event := history.Event{Revision: e.Kv.ModRevision, Seen: now, Endpoint: server, Delete: e.Type == clientv3.EventTypeDelete, KV: keyValue(e.Kv)}
		if event.Delete {
			event.KV = history.KV{Key: event.KV.Key, Mod: event.KV.Mod}
		}
		if e.PrevKv != nil {
			prev := keyValue(e.PrevKv)
			event.Prev = &prev
		}
		w.events = append(w.events, event)
		w.next = max(w.next, e.Kv.ModRevision+1)
	}
	return nil
}

// await waits until the watcher has received a revision.
func (w *watcher) await(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, watchPatience)
	defer cancel()
	for ; ; quorum.Pause(ctx, 20*time.Millisecond) {
		w.mu.Lock()
		next, fault := w.next, w.fault
		w.mu.Unlock()
		if fault != nil || next > revision {
			return fault
		}
		if ctx.Err() != nil {
			return fmt.Errorf("watcher %s has seen everything up to revision %d after %s, not the last one, %d", w.name, next-1, watchPatience, revision)
		}
	}
}

func (w *watcher) seen() []history.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]history.Event(nil), w.events...)
}
