package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/raftstoretest"
	"github.com/balsahq/balsa/raftstore/simnet"
)

// world is one simulated cluster with its clients and network.
type world struct {
	h       *history
	seed    uint64
	net     *simnet.Network
	servers []*server
	traits  traits

	mu      sync.Mutex // guards the servers' run
	zombies sync.WaitGroup
	ctx     context.Context // of clients and watchers
	stop    context.CancelFunc
}

// server is one server over all its runs.
type server struct {
	w    *world
	id   string
	n    int
	disk *raftstoretest.Disk
	slow int  // its clock is so many times slower than the others'
	join bool // it does not begin in the cluster

	// Guarded by world.mu.
	run      *run // nil while it is down
	starting bool
	runs     int
}

// run is one process of a server.
type run struct {
	name  string
	node  *simnet.Node
	store *raftstore.Store
	ctx   context.Context // of the store's Run
	end   context.CancelFunc
	ended chan struct{}
}

func serverID(i int) string { return fmt.Sprintf("%02x%030x", 0xa0+i, i) }

// newWorld makes the servers and starts those that begin in the cluster.
func newWorld(seed uint64, tr traits, h *history) *world {
	w := &world{h: h, seed: seed, traits: tr}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.net = simnet.New(simnet.Config{Seed: seed, Default: tr.link, Timeout: tr.patience, Observe: w.observe, Answered: w.answered})
	var voters []string
	for i := range tr.servers {
		voters = append(voters, serverID(i))
	}
	for i := range tr.servers + tr.spares {
		s := &server{w: w, id: serverID(i), n: i, disk: raftstoretest.NewDisk(seed, uint64(i)), slow: 1, join: i >= tr.servers}
		if i == tr.slowClock {
			s.slow = 4
		}
		if !s.join {
			s.disk.Bootstrap(voters)
		}
		w.servers = append(w.servers, s)
	}
	for _, s := range w.servers[:tr.servers] {
		w.start(s)
	}
	return w
}

// observe sees every Raft request: only a leader appends, and it calls nothing
// committed that its own disk does not have.
func (w *world) observe(from, _ string, command any) {
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		w.h.leads(from, c.Term)
		if s := w.server(from); s != nil && !s.disk.Holds(c.LeaderCommitIndex, 0) {
			w.h.failf("leader %s says that entry %d is committed, its disk does not have it", short(from), c.LeaderCommitIndex)
		}
	case *raft.InstallSnapshotRequest:
		w.h.leads(from, c.Term)
		w.h.logf("server %s sends a snapshot up to entry %d", short(from), c.LastLogIndex)
	}
}

// answered checks every answer: a server that says that it has an entry has it on disk.
func (w *world) answered(to string, command, answer any) {
	req, ok := command.(*raft.AppendEntriesRequest)
	resp, _ := answer.(*raft.AppendEntriesResponse)
	if !ok || resp == nil || !resp.Success {
		return
	}
	index, term := req.PrevLogEntry, req.PrevLogTerm
	if n := len(req.Entries); n > 0 {
		index, term = req.Entries[n-1].Index, req.Entries[n-1].Term
	}
	if s := w.server(to); s != nil && !s.disk.Holds(index, term) {
		w.h.failf("server %s says that it has entry %d of term %d, its disk does not", short(to), index, term)
	}
}

// server finds one by its ID, nil when it is being made.
func (w *world) server(id string) *server {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.servers {
		if s.id == id {
			return s
		}
	}
	return nil
}

// start runs a server that is down.
func (w *world) start(s *server) {
	w.mu.Lock()
	if s.run != nil || s.starting {
		w.mu.Unlock()
		return
	}
	s.starting = true // no lock is held while time passes
	s.runs++
	w.mu.Unlock()
	r := w.open(s)
	w.mu.Lock()
	s.run, s.starting = r, false
	w.mu.Unlock()
	if r == nil {
		return
	}
	w.zombies.Go(func() {
		defer close(r.ended)
		if err := r.store.Run(r.ctx); err != nil && !r.dead() {
			w.h.logf("server %s ended: %v", r.name, err)
		}
	})
	w.zombies.Go(func() { w.record(s, r) })
	w.zombies.Go(func() { w.client(100*(1+s.n)+s.runs).rule(s, r) })
	w.h.logf("server %s starts", r.name)
}

// open opens the store of a server for one more run, nil when that fails.
func (w *world) open(s *server) *run {
	if err := s.disk.CheckLog(); err != nil {
		w.h.failf("server %s would refuse to start: %v", short(s.id), err)
	}
	r := &run{name: fmt.Sprintf("%s/%d", short(s.id), s.runs), node: w.net.Join(s.id), ended: make(chan struct{})}
	r.ctx, r.end = context.WithCancel(context.Background())
	cfg := raftstore.Config{
		ServerID: s.id, ClusterID: fmt.Sprintf("%032x", w.seed), Join: s.join,
		Transport: r.node.Transport(), Peers: r.node.Peers(),
		SnapshotEntries: w.traits.snapshotEntries,
	}
	if s.slow > 1 {
		cfg.HeartbeatTimeout = time.Duration(s.slow) * 250 * time.Millisecond
		cfg.LeaderLease = cfg.HeartbeatTimeout
	}
	if simLog {
		cfg.Logger = slog.New(slog.NewTextHandler(traceWriter{w.h, r.name}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: noTime}))
	}
	cfg.UseDisk(s.disk.Attach(func(dead <-chan struct{}) { awake(r.node, dead) }))
	store, err := raftstore.Open(cfg)
	if err != nil {
		if w.h.logf("server %s does not start: %v", r.name, err); !errors.Is(err, raftstore.ErrDiskFull) {
			w.h.failf("server %s does not start: %v", r.name, err)
		}
		r.node.Kill()
		return nil
	}
	r.store = store
	rc := store.Raft().ReloadableConfig()
	rc.TrailingLogs = w.traits.trailing
	if err := store.Raft().ReloadConfig(rc); err != nil {
		w.h.failf("server %s: %v", r.name, err)
	}
	r.node.Serve(store)
	return r
}

// awake waits until the process is not stopped or its disk is gone.
func awake(n *simnet.Node, dead <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		select {
		case <-dead:
			cancel()
		case <-done:
		}
	}()
	_ = n.Awake(ctx)
	close(done)
}

func (r *run) dead() bool {
	select {
	case <-r.node.Dead():
		return true
	default:
		return false
	}
}

// crash ends the process of a server as kill -9, or a power cut, does.
func (w *world) crash(s *server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.run == nil {
		return
	}
	w.h.logf("server %s crashes", s.run.name)
	s.run.node.Kill()
	s.disk.Crash()
	if i := s.run.store.Progress().AppliedIndex; !s.disk.Holds(i, 0) {
		w.h.failf("server %s has applied entry %d, its disk does not have it", s.run.name, i)
	}
	s.run.end() // the rest of the run ends without a connection to the network
	s.run = nil
}

// shutdown ends the process of a server in order.
func (w *world) shutdown(s *server) {
	w.mu.Lock()
	r := s.run
	w.mu.Unlock()
	if r == nil {
		return
	}
	w.h.logf("server %s is told to end", r.name)
	r.end()
	select {
	case <-r.ended:
		w.h.logf("server %s has ended", r.name)
	case <-r.node.Dead():
	case <-time.After(20 * time.Second):
		w.h.logf("server %s does not end", r.name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.run == r {
		r.node.Kill()
		s.disk.Crash()
		s.run = nil
	}
}

// up returns the servers that run.
func (w *world) up() (out []*server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.servers {
		if s.run != nil {
			out = append(out, s)
		}
	}
	return out
}

func (w *world) runOf(s *server) *run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.run
}

// leader is the server that leads in the newest term, as far as those that run
// know, nil when none does.
func (w *world) leader() *server {
	var found *server
	var newest uint64
	for _, s := range w.up() {
		if r := w.runOf(s); r != nil {
			if id, term := r.store.Leader(); id == s.id && term > newest {
				found, newest = s, term
			}
		}
	}
	return found
}

var errDown = errors.New("sim: the server is down")

// errUnknown: no answer came, what was asked may have happened.
var errUnknown = errors.New("sim: no answer")

// ask lets a client ask a server and wait for at most patience. Servers that
// stopped or died do not answer, whatever their stores return.
func ask[T any](w *world, s *server, patience time.Duration, fn func(context.Context, *run) (T, error)) (T, error) {
	var zero T
	r := w.runOf(s)
	if r == nil {
		return zero, errDown
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if r.node.Awake(ctx) != nil {
		return zero, errUnknown
	}
	type answer struct {
		v   T
		err error
	}
	done := make(chan answer, 1)
	w.zombies.Go(func() {
		v, err := fn(ctx, r)
		done <- answer{v, err}
	})
	select {
	case a := <-done:
		if r.node.Awake(ctx) != nil || r.dead() {
			return zero, errUnknown
		}
		return a.v, a.err
	case <-r.node.Dead():
		return zero, errUnknown
	}
}

// record writes down everything one run of a server publishes.
func (w *world) record(s *server, r *run) {
	next := int64(2)
	for {
		watch, err := r.store.Watch(raftstore.WatchRequest{Key: "", RangeEnd: "\x00", StartRevision: next})
		if errors.Is(err, raftstore.ErrCompacted) {
			next = r.store.CompactRevision() + 1
			continue
		}
		if err != nil {
			return
		}
		for {
			b, err := watch.Next(context.Background())
			if err != nil {
				watch.Close()
				if errors.Is(err, raftstore.ErrOverrun) {
					break
				}
				return
			}
			for len(b.Events) > 0 {
				rev, n := b.Events[0].KV.ModRevision, 0
				var events []simEvent
				for n < len(b.Events) && b.Events[n].KV.ModRevision == rev {
					events = append(events, eventOf(b.Events[n]))
					n++
				}
				w.h.saw(r.name, rev, events)
				b.Events = b.Events[n:]
				next = rev + 1
			}
		}
	}
}

// pick returns a server that runs, nil when none does.
func (w *world) pick(rng *rand.Rand) *server {
	up := w.up()
	if len(up) == 0 {
		return nil
	}
	return up[rng.IntN(len(up))]
}

// traceWriter brings what a store logs into the trace.
type traceWriter struct {
	h    *history
	name string
}

func (t traceWriter) Write(b []byte) (int, error) {
	t.h.logf("    %s %s", t.name, b[:max(len(b)-1, 0)])
	return len(b), nil
}

func noTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
