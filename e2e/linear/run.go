package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/balsahq/balsa/e2e/history"
	"github.com/balsahq/balsa/e2e/quorum"
)

// diskBytes is the size of each server's disk, which is small enough to fill.
const diskBytes = 512 << 20

// run is one cluster with its users and its faults.
type run struct {
	*options
	seed    uint64
	servers int

	cluster *quorum.Cluster
	began   time.Time
	clients []*clientv3.Client // one for each server
	chaos   *chaos
	dir     string // directory for everything about a failed run

	mu      sync.Mutex
	history history.History
	checked time.Duration
}

// now returns nanoseconds since the run began.
func (r *run) now() int64 { return int64(time.Since(r.began)) + 1 }

func (r *run) do(ctx context.Context) (err error) {
	r.cluster, err = quorum.New(quorum.Config{System: r.system, Binary: r.binary, Servers: r.servers, DiskBytes: diskBytes, Flags: r.flags})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && !errors.Is(err, context.Canceled) || err == nil && r.options.keep {
			r.keep(err)
		}
		for _, c := range r.clients {
			c.Close()
		}
		err = errors.Join(err, r.cluster.Close())
	}()
	forming, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := r.cluster.Form(forming); err != nil {
		return fmt.Errorf("form the cluster: %w", err)
	}
	for i := range r.servers {
		c, err := r.cluster.Client(r.cluster.Endpoint(i))
		if err != nil {
			return err
		}
		r.clients = append(r.clients, c)
	}
	r.began = time.Now()
	if err := r.record(ctx); err != nil {
		return err
	}
	began := time.Now()
	err = history.Check(&r.history, r.limit, r.failureDir())
	r.checked = time.Since(began)
	return err
}

// record executes the run and fills the history.
func (r *run) record(ctx context.Context) error {
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	watchers := r.watchers()
	var watched, used sync.WaitGroup
	for _, w := range watchers {
		watched.Go(func() { w.follow(watching) })
	}
	defer watched.Wait()
	defer stopWatching()
	using, stopUsing := context.WithTimeout(ctx, r.duration)
	defer stopUsing()
	for i := range r.options.clients {
		used.Go(func() { newUser(r, i).work(using) })
	}
	used.Go(func() { r.lease(using) })
	r.chaos = newChaos(r)
	chaosErr := r.chaos.run(using)
	used.Wait()
	if err := errors.Join(chaosErr, ctx.Err()); err != nil {
		return err
	}
	return r.settle(ctx, watchers)
}

// settle waits until all servers serve, every watcher has received every event, and all servers hold the same state.
func (r *run) settle(ctx context.Context, watchers []*watcher) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := range r.servers {
		if err := r.cluster.Ready(ctx, i); err != nil {
			return fmt.Errorf("after all faults are healed: %w", err)
		}
	}
	if err := r.leasesEnd(ctx); err != nil {
		return err
	}
	u := newUser(r, r.options.clients)
	for n := 0; r.history.End == 0; n++ {
		if ctx.Err() != nil {
			return errors.New("the last write does not succeed after all faults are healed")
		}
		op := u.perform(history.Op{Writes: []history.Write{{Key: "end", Value: fmt.Sprintf("end-%d", n)}}, Endpoint: n % r.servers})
		r.history.End = op.Revision
	}
	for _, w := range watchers {
		if err := w.await(ctx, r.history.End); err != nil {
			return err
		}
		r.history.Watchers = append(r.history.Watchers, history.Watcher{Name: w.name, Events: w.seen()})
	}
	var hashes []string
	for i, c := range r.clients {
		h, err := c.HashKV(ctx, r.cluster.Endpoint(i), r.history.End)
		if err != nil {
			return fmt.Errorf("hash of server %d: %w", i, err)
		}
		hashes = append(hashes, fmt.Sprintf("%d: %x", i, h.Hash))
		if h.Hash != 0 && !strings.HasSuffix(hashes[0], fmt.Sprintf(" %x", h.Hash)) {
			return fmt.Errorf("the servers differ at revision %d: hashes %s", r.history.End, strings.Join(hashes, ", "))
		}
		u.perform(history.Op{Read: &history.Read{Prefix: true, At: r.history.End, Serializable: true}, Endpoint: i})
	}
	return nil
}

func (r *run) failureDir() string {
	if r.dir == "" {
		r.dir = filepath.Join(r.out, fmt.Sprintf("%s-%d-seed-%d", r.system, r.servers, r.seed))
		if err := os.MkdirAll(r.dir, 0o755); err != nil {
			return ""
		}
	}
	return r.dir
}

// keep saves everything that is needed to investigate a run.
func (r *run) keep(err error) {
	dir := r.failureDir()
	if err != nil {
		_ = os.WriteFile(filepath.Join(dir, "verdict.txt"), []byte(err.Error()+"\n"), 0o644)
	}
	_ = r.history.Save(filepath.Join(dir, "history.json"))
	if r.chaos != nil {
		_ = os.WriteFile(filepath.Join(dir, "faults.txt"), []byte(strings.Join(r.chaos.told(), "\n")+"\n"), 0o644)
	}
	for i := range r.servers {
		if raw, err := os.ReadFile(r.cluster.Log(i)); err == nil {
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("server-%d.log", i)), raw, 0o644)
		}
	}
}

// summary returns one line; after a failure, more.
func (r *run) summary(err error) string {
	var known, unknown, failed int
	var acks []int64
	for i := range r.history.Ops {
		o := &r.history.Ops[i]
		switch {
		case o.Fault == "":
			known++
		case len(o.Writes) > 0:
			unknown++
		default:
			failed++
		}
		if o.Fault == "" && o.Changed && o.Return < int64(r.duration) { // later writes belong to settle
			acks = append(acks, o.Return)
		}
	}
	slices.Sort(acks)
	var gap, at int64
	for i := 1; i < len(acks); i++ {
		if d := acks[i] - acks[i-1]; d > gap {
			gap, at = d, acks[i-1]
		}
	}
	events := 0
	for _, w := range r.history.Watchers {
		events += len(w.Events)
	}
	var names []string
	if r.chaos != nil {
		names = r.chaos.names()
	}
	line := fmt.Sprintf("seed %d, %s, %d servers: %d answered, %d unknown, %d reads failed, %d events, longest gap in writes %.2f s (from %.1f s on), judged in %.1f s; %s: ",
		r.seed, r.system, r.servers, known, unknown, failed, events, float64(gap)/1e9, float64(at)/1e9, r.checked.Seconds(), strings.Join(names, " "))
	if err == nil {
		_ = os.Remove(r.dir) // it is empty
		return line + "ok"
	}
	return line + "FAILED\n" + err.Error() + "\nsee " + r.dir
}
