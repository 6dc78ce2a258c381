package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore"
)

// peers is a cluster of real Raft nodes in memory, each with a Gossip and an
// Autopilot, in fake time.
type peers struct {
	*world
	rafts  map[string]*peer // by name
	answer sync.Map         // *raftOnly by ID: of rafts, for autopilots that ask while one joins
}

type peer struct {
	id    string
	raft  *raft.Raft
	trans *raft.InmemTransport
	pilot *Autopilot
	asked atomic.Int64
	stop  func()
}

type noFSM struct{}

func (noFSM) Apply(*raft.Log) any                 { return nil }
func (noFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("no snapshots") }
func (noFSM) Restore(io.ReadCloser) error         { return nil }

// raftOnly is the Store of a bare Raft node.
type raftOnly struct {
	id     string
	r      *raft.Raft
	change chan struct{}
	mu     sync.Mutex
}

func (s *raftOnly) ServerID() string { return s.id }
func (s *raftOnly) Leading() bool    { return s.r.State() == raft.Leader }
func (s *raftOnly) Leader() (string, uint64) {
	_, id := s.r.LeaderWithID()
	return string(id), s.r.CurrentTerm()
}
func (s *raftOnly) Servers() ([]raftstore.Server, error) {
	f := s.r.GetConfiguration()
	var out []raftstore.Server
	for _, srv := range f.Configuration().Servers {
		out = append(out, raftstore.Server{ID: string(srv.ID), Voter: srv.Suffrage == raft.Voter})
	}
	return out, f.Error()
}
func (s *raftOnly) Progress() raftstore.Progress {
	p := raftstore.Progress{Term: s.r.CurrentTerm(), LastIndex: s.r.LastIndex(), AppliedIndex: s.r.AppliedIndex()}
	if !s.Leading() {
		p.LastContact = time.Since(s.r.LastContact())
	}
	return p
}

func (s *raftOnly) LeaderChanged() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change
}

// wake makes the autopilot look now.
func (s *raftOnly) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.change)
	s.change = make(chan struct{})
}

func (s *raftOnly) follow(ctx context.Context, seen <-chan raft.Observation) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-seen:
			s.wake()
		}
	}
}

func (s *raftOnly) Promote(_ context.Context, id string) error {
	return s.settled(s.r.AddVoter(raft.ServerID(id), raft.ServerAddress(id), 0, 0))
}
func (s *raftOnly) Demote(_ context.Context, id string) error {
	return s.r.DemoteVoter(raft.ServerID(id), 0, 0).Error()
}
func (s *raftOnly) Remove(_ context.Context, id string) error {
	return s.r.RemoveServer(raft.ServerID(id), 0, 0).Error()
}

// settled waits for a change, and writes something now and then as clusters do: Raft does not count what a learner has
// acknowledged before its leader notes it as a voter, and so the change may be committed with the next entry only.
func (s *raftOnly) settled(change raft.IndexFuture) error {
	done := make(chan error, 1)
	go func() { done <- change.Error() }()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(time.Second):
			s.r.Apply(nil, time.Second)
		}
	}
}

func newPeers(t *testing.T, seed uint64) *peers {
	p := &peers{rafts: map[string]*peer{}, world: newWorld(t, seed)}
	t.Cleanup(func() { // before that of the world
		for name := range p.rafts {
			p.die(name)
		}
	})
	return p
}

// join starts server number n; the first forms the cluster, others are added as
// learners by the leader.
func (p *peers) join(n int, seeds ...string) {
	p.t.Helper()
	name, id := fmt.Sprint("s", n), serverID(n)
	gossip := p.start(name, serverMeta(n), "", seeds...)
	_, trans := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), 500*time.Millisecond)
	for _, other := range p.rafts {
		other.trans.Connect(raft.ServerAddress(id), trans)
		trans.Connect(raft.ServerAddress(other.id), other.trans)
	}
	conf := raft.DefaultConfig()
	conf.LocalID, conf.LogOutput = raft.ServerID(id), io.Discard
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 250*time.Millisecond, 250*time.Millisecond, 125*time.Millisecond
	store := raft.NewInmemStore()
	r, err := raft.NewRaft(conf, noFSM{}, store, store, raft.NewInmemSnapshotStore(), trans)
	if err != nil {
		p.t.Fatal(err)
	}
	bare := &raftOnly{id: id, r: r, change: make(chan struct{})}
	me := &peer{id: id, raft: r, trans: trans}
	me.pilot, err = NewAutopilot(AutopilotConfig{
		Store: bare, Members: gossip.Members, MembersChanged: gossip.Changed,
		Stats:  func(ctx context.Context, id string) (Stats, error) { me.asked.Add(1); return p.stats(ctx, id) },
		Logger: slog.New(slog.NewTextHandler(gossip.logs, nil)),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	seen := make(chan raft.Observation, 8)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool { _, ok := o.Data.(raft.LeaderObservation); return ok })
	r.RegisterObserver(observer)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { bare.follow(ctx, seen) })
	wg.Go(func() { _ = me.pilot.Run(ctx) })
	me.stop = func() { cancel(); wg.Wait(); _ = r.Shutdown().Error(); _ = trans.Close() }
	p.rafts[name] = me
	p.answer.Store(id, bare)
	if len(p.rafts) == 1 {
		err = r.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: trans.LocalAddr()}}}).Error()
	} else {
		err = p.leader().raft.AddNonvoter(conf.LocalID, trans.LocalAddr(), 0, 0).Error()
		p.leader().pilot.cfg.Store.(*raftOnly).wake()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.leader()
}

func (p *peers) stats(ctx context.Context, id string) (Stats, error) {
	if store, ok := p.answer.Load(id); ok {
		return StatsOf(store.(*raftOnly)), nil
	}
	<-ctx.Done() // no server answers
	return Stats{}, ctx.Err()
}

// die is loss of power.
func (p *peers) die(name string) {
	dead := p.rafts[name]
	delete(p.rafts, name)
	p.answer.Delete(dead.id)
	for _, other := range p.rafts {
		other.trans.Disconnect(raft.ServerAddress(dead.id))
	}
	dead.trans.DisconnectAll()
	dead.stop()
	p.kill(name)
}

func (p *peers) leader() *peer {
	p.t.Helper()
	var found *peer
	p.until(10*time.Second, "a leader", func() bool {
		found = nil
		for _, r := range p.rafts {
			if r.raft.VerifyLeader().Error() == nil {
				found = r
			}
		}
		return found != nil
	})
	return found
}

// voters are the numbers of the voters, then of the learners.
func (p *peers) voters() string {
	var out [2][]string
	for _, s := range p.leader().raft.GetConfiguration().Configuration().Servers {
		name := strings.TrimLeft(string(s.ID), "0")
		out[min(1, s.Suffrage)] = append(out[min(1, s.Suffrage)], name)
	}
	slices.Sort(out[0])
	slices.Sort(out[1])
	return strings.Join(out[0], "") + "+" + strings.Join(out[1], "")
}

func (p *peers) becomes(limit time.Duration, want string) time.Duration {
	p.t.Helper()
	return p.until(limit, "voters and learners "+want, func() bool {
		if p.voters() != want {
			p.saw = fmt.Sprintf("%s %+v", p.voters(), p.leader().pilot.State())
			return false
		}
		return true
	})
}

func TestAutopilotGrowsAndReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers(t, 1)
		p.join(1)
		seed := p.nodes["s1"].addr
		p.join(2, seed)
		time.Sleep(30 * time.Second)
		p.becomes(0, "1+2")
		if s := p.leader().pilot.State(); s.Tolerates != 0 || !strings.Contains(s.Servers[1].Waits, "a third server") {
			t.Errorf("with two: %+v", s)
		}
		p.join(3, seed)
		t.Logf("third server: three voters after %v", p.becomes(10*time.Second, "123+"))
		if s, err := p.rafts["s2"].pilot.Look(context.Background()); err != nil || s.Tolerates != 1 || len(s.Servers) != 3 || s.Servers[0].Part != Leads {
			t.Errorf("seen by s2: %+v, %v", s, err)
		}

		p.die("s3")
		time.Sleep(2 * time.Minute)
		p.becomes(0, "123+") // kept: two of three are a quorum, two of two would be no safer
		p.join(4, seed)
		t.Logf("replaced after %v", p.becomes(10*time.Second, "124+"))

		p.join(5, seed)
		time.Sleep(time.Minute)
		p.becomes(0, "124+5")
		p.die("s2") // the standby takes over, then the dead one goes
		t.Logf("standby took over after %v", p.becomes(50*time.Second, "145+"))
	})
}

func TestAutopilotSurvivesLossesOfLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers(t, 2)
		p.join(1)
		for n := 2; n <= 5; n++ {
			p.join(n, p.nodes["s1"].addr)
		}
		p.becomes(30*time.Second, "12345+")
		for range 2 {
			leader := p.leader()
			for name, r := range p.rafts {
				if r == leader {
					p.die(name)
				}
			}
			time.Sleep(90 * time.Second)
		}
		v := p.voters()
		if len(v) != len("123+") {
			t.Errorf("after two losses of five: %s", v)
		}
		if s := p.leader().pilot.State(); s.Tolerates != 1 || s.Voters != 3 {
			t.Errorf("after two losses of five: %+v", s)
		}
	})
}

func TestAutopilotRemovesWhoDepartsAtOnceAndKeepsWhoStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers(t, 3)
		p.join(1)
		for n := 2; n <= 5; n++ {
			p.join(n, p.nodes["s1"].addr)
		}
		p.becomes(30*time.Second, "12345+")
		if err := p.nodes["s4"].Leave(2 * time.Second); err != nil {
			t.Fatal(err)
		}
		p.die("s4")
		time.Sleep(20 * time.Second)
		p.becomes(0, "12345+") // a restart takes as long
		if err := p.nodes["s5"].Depart(2 * time.Second); err != nil {
			t.Fatal(err)
		}
		p.die("s5")
		took := p.becomes(5*time.Second, "1234+")
		t.Logf("removed after %v", took)
	})
}

func TestAutopilotAtRestAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers(t, 4)
		p.join(1)
		p.join(2, p.nodes["s1"].addr)
		p.join(3, p.nodes["s1"].addr)
		p.becomes(30*time.Second, "123+")
		time.Sleep(5 * time.Second)
		before := p.leader().asked.Load()
		time.Sleep(5 * time.Minute)
		if n := p.leader().asked.Load() - before; n > 0 {
			t.Errorf("asked %d times in five minutes of rest", n)
		}
	})
}
