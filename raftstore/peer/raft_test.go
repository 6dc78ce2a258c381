package peer

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// journal is an FSM that remembers what it was given.
type journal struct {
	mu    sync.Mutex
	items []string
}

func (l *journal) Apply(e *raft.Log) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, string(e.Data))
	return nil
}

func (l *journal) Snapshot() (raft.FSMSnapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return saved(slices.Clone(l.items)), nil
}

func (l *journal) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = strings.Split(string(b), "\n")
	return nil
}

func (l *journal) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.items)
}

func (l *journal) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.items, "\n")
}

type saved []string

func (s saved) Persist(sink raft.SnapshotSink) error {
	if _, err := io.WriteString(sink, strings.Join(s, "\n")); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}
func (saved) Release() {}

// voter is a member with Raft.
type voter struct {
	*member
	raft *raft.Raft
	fsm  *journal
}

func raftConfig(id string) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(id)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 600*time.Millisecond, 600*time.Millisecond, 600*time.Millisecond
	c.CommitTimeout = 10 * time.Millisecond
	c.Logger = hclog.NewNullLogger()
	return c
}

// startRaft makes an empty peer of m.
func startRaft(t testing.TB, m *member) *voter {
	t.Helper()
	v := &voter{member: m, fsm: &journal{}}
	store := raft.NewInmemStore()
	snaps := raft.NewInmemSnapshotStore()
	var err error
	v.raft, err = raft.NewRaft(raftConfig(m.id), v.fsm, store, store, snaps, m.Transport())
	must(t, err)
	t.Cleanup(func() { must(t, v.raft.Shutdown().Error()) })
	return v
}

func startCluster(t testing.TB, n int) []*voter {
	t.Helper()
	w := newWorld(t)
	var all []*voter
	var conf raft.Configuration
	for range n {
		v := startRaft(t, w.join())
		all = append(all, v)
		conf.Servers = append(conf.Servers, raft.Server{ID: raft.ServerID(v.id), Address: raft.ServerAddress(v.id)})
	}
	must(t, all[0].raft.BootstrapCluster(conf).Error())
	return all
}

func leader(t testing.TB, all []*voter) *voter {
	t.Helper()
	var l *voter
	eventually(t, "a leader", func() bool {
		for _, v := range all {
			if v.raft.State() == raft.Leader && v.raft.VerifyLeader().Error() == nil {
				l = v
				return true
			}
		}
		return false
	})
	return l
}

func apply(t testing.TB, all []*voter, text string) {
	t.Helper()
	eventually(t, "write "+text[:min(len(text), 20)], func() bool { return leader(t, all).raft.Apply([]byte(text), time.Second).Error() == nil })
}

func agree(t testing.TB, all []*voter, n int) {
	t.Helper()
	for _, v := range all {
		eventually(t, fmt.Sprintf("%d entries on all", n), func() bool { return v.fsm.len() >= n })
		if v.fsm.text() != all[0].fsm.text() {
			t.Fatalf("peers differ:\n%.200s\n%.200s", v.fsm.text(), all[0].fsm.text())
		}
	}
}

func TestClusterElectsReplicatesTransfers(t *testing.T) {
	all := startCluster(t, 3)
	for i := range 50 {
		apply(t, all, fmt.Sprint(i))
	}
	agree(t, all, 50)
	old := leader(t, all)
	if a, id := all[0].raft.LeaderWithID(); string(a) != string(id) || string(id) != old.id {
		t.Errorf("leader is %q at %q, want %q", id, a, old.id)
	}
	eventually(t, "another leader", func() bool { // an attempt may come to nothing where the machine is busy
		if l := leader(t, all); l == old {
			_ = l.raft.LeadershipTransfer().Error()
		}
		return leader(t, all) != old
	})
	apply(t, all, "after")
	agree(t, all, 51)
}

func TestMemberMovesToAnotherPort(t *testing.T) {
	all := startCluster(t, 3)
	apply(t, all, "before")
	agree(t, all, 1)
	l := leader(t, all)
	for i, v := range all {
		if v == l && i != 0 {
			all[0], all[i] = all[i], all[0] // keep the leader out of it first
		}
	}
	moved := all[1]
	for round := range 2 {
		moved.stopPort()
		moved.listen("127.0.0.1:0")
		for _, v := range all {
			v.Drop(moved.id)
		}
		text := fmt.Sprint("moved ", round)
		apply(t, all, text)
		agree(t, all, 2+round)
		moved = all[0] // then move the one that led
	}
}

func TestMovedMemberIsFoundWithoutDrop(t *testing.T) {
	all := startCluster(t, 3)
	apply(t, all, "before")
	agree(t, all, 1)
	l := leader(t, all)
	i := slices.IndexFunc(all, func(v *voter) bool { return v != l })
	old := all[i].port
	stop := all[i].stopPort
	all[i].listen("127.0.0.1:0") // the old port still answers
	stop2 := all[i].stopPort
	all[i].stopPort = func() { stop(); stop2() }
	eventually(t, "the leader dials the new port", func() bool {
		old.gate.mu.Lock()
		defer old.gate.mu.Unlock()
		return len(old.gate.handled) == 0
	})
	apply(t, all, "after")
	agree(t, all, 2)
}

func TestSnapshotReachesNewMember(t *testing.T) {
	all := startCluster(t, 1)
	l := leader(t, all)
	big := strings.Repeat("x", 1<<20)
	for range 9 { // more than one message takes
		apply(t, all, big)
	}
	must(t, l.raft.Snapshot().Error())
	c := l.raft.ReloadableConfig()
	c.TrailingLogs = 1
	must(t, l.raft.ReloadConfig(c))
	must(t, l.raft.Snapshot().Error())
	apply(t, all, "after")
	must(t, l.raft.Snapshot().Error())
	v := startRaft(t, l.w.join())
	addVoter(t, all, v)
	agree(t, append(all, v), 10)
}

func TestLongLogCatchesUpInPieces(t *testing.T) {
	all := startCluster(t, 1)
	l := leader(t, all)
	big := strings.Repeat("y", 3<<20)
	for range 5 {
		apply(t, all, big)
	}
	v := startRaft(t, l.w.join())
	addVoter(t, all, v)
	agree(t, append(all, v), 5)
}

func TestPreVoteIsSpoken(t *testing.T) {
	all := startCluster(t, 3)
	apply(t, all, "x")
	l := leader(t, all)
	var other *voter
	for _, v := range all {
		if v != l {
			other = v
		}
	}
	var resp raft.RequestPreVoteResponse
	tr := other.Transport().(raft.WithPreVote)
	must(t, tr.RequestPreVote(raft.ServerID(l.id), "", &raft.RequestPreVoteRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte(other.id), Addr: []byte(other.id)}, Term: 1,
	}, &resp))
	if resp.Granted || resp.Term == 0 {
		t.Errorf("pre-vote against a leader: %+v", resp)
	}
}

func TestRestartedPeerIsReachedAtOnce(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	serveVotes(t, b)
	ask := func() error {
		return a.Transport().RequestVote(raft.ServerID(b.id), "", &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{})
	}
	must(t, ask())
	b.stopPort() // kept connections of a are dead now
	addr, _ := w.resolve(b.id)
	b.listen(addr)
	must(t, ask())
}

// addVoter has a member vote with the others. Until it has caught up, the one that leads may lose that and win it again.
func addVoter(t testing.TB, all []*voter, v *voter) {
	t.Helper()
	eventually(t, "another voter", func() bool {
		l := leader(t, append(slices.Clone(all), v))
		return l.raft.AddVoter(raft.ServerID(v.id), raft.ServerAddress(v.id), 0, time.Second).Error() == nil
	})
}

// serveVotes answers vote requests to m.
func serveVotes(t testing.TB, m *member) {
	t.Helper()
	answerAll(t, m, func(rpc raft.RPC) {
		switch rpc.Command.(type) {
		case *raft.RequestVoteRequest:
			rpc.Respond(&raft.RequestVoteResponse{Term: 7, Granted: true}, nil)
		case *raft.AppendEntriesRequest:
			rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil)
		default:
			rpc.Respond(nil, errors.New("not now"))
		}
	})
}

func answerAll(t testing.TB, m *member, answer func(raft.RPC)) {
	t.Helper()
	tr := m.Transport()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case rpc := <-tr.Consumer():
				answer(rpc)
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

func TestErrorOfRaftKeepsItsTextAndTheConnection(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	serveVotes(t, b)
	for range 3 {
		err := a.Transport().TimeoutNow(raft.ServerID(b.id), "", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
		if err == nil || err.Error() != "not now" {
			t.Fatalf("error is %v", err)
		}
	}
	if n := a.conns.count(b.id); n != 1 {
		t.Errorf("%d connections for three requests", n)
	}
}

func TestFailedPipelineGivesNoSignOfLife(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	answered := make(chan struct{}, 1)
	answerAll(t, b, func(rpc raft.RPC) {
		answered <- struct{}{}
		rpc.Respond(nil, errors.New("disk"))
	})
	p, err := a.Transport().AppendEntriesPipeline(raft.ServerID(b.id), "")
	must(t, err)
	f, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
	must(t, err)
	<-answered
	if f.Error() == nil {
		t.Error("no error")
	}
	eventually(t, "the pipeline refuses", func() bool {
		_, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
		return err != nil
	})
	select {
	case <-p.Consumer():
		t.Error("a failed append was handed to Raft as an answer")
	default:
	}
	must(t, p.Close())
}

func TestTransportAfterCloseIsANewOne(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	old := b.Transport()
	must(t, old.(raft.WithClose).Close())
	if b.Transport() == old {
		t.Fatal("a closed transport was given")
	}
	serveVotes(t, b)
	must(t, a.Transport().RequestVote(raft.ServerID(b.id), "", &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{}))
	if err := old.RequestVote(raft.ServerID(a.id), "", &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed transport: %v", err)
	}
}
