package raftfix

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// stoppingLog is a log whose failed writes are not repeated once stop is closed.
type stoppingLog struct{ stop chan struct{} }

func (stoppingLog) TryHoldTerm() (func(), bool) { return func() {}, true }
func (l stoppingLog) Stopping() <-chan struct{} { return l.stop }

func TestNothingReachesRaftWhenTheDiskGivesUp(t *testing.T) {
	d := stoppingLog{make(chan struct{})}
	_, trans := raft.NewInmemTransport("a")
	h := NewHeartbeats(Ballot{trans}, d, make(chan struct{}))
	waiting := make(chan struct{})
	go func() {
		h.Enqueue(raft.RPC{}) // Raft is busy with the disk
		close(waiting)
	}()
	close(d.stop)
	<-waiting
	go func() {
		for range 100 {
			h.Enqueue(raft.RPC{})
		}
		close(h.queue)
	}()
	if _, handed := <-h.Consumer(); handed {
		t.Fatal("Raft was handed a request after a write had failed for good")
	}
}

// TestAHeartbeatNeverTakesTheTermBack: a leader, and a follower whose term changes, answer no heartbeat beside the main goroutine.
func TestAHeartbeatNeverTakesTheTermBack(t *testing.T) {
	conf, mem := raft.DefaultConfig(), raft.NewInmemStore()
	conf.LocalID, conf.Logger = "a", hclog.NewNullLogger()
	_, trans := raft.NewInmemTransport("a")
	snaps := raft.NewInmemSnapshotStore()
	if err := raft.BootstrapCluster(conf, mem, mem, snaps, trans, raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}); err != nil {
		t.Fatal(err)
	}
	r, err := raft.NewRaft(conf, &raft.MockFSM{}, mem, mem, snaps, trans)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown()
	terms := &heldTerm{}
	h := NewHeartbeats(Ballot{trans}, terms, make(chan struct{}))
	h.raft.Store(r)
	beat := func() (answered bool) {
		h.answerBeside(raft.RPC{Command: &raft.AppendEntriesRequest{Term: r.CurrentTerm()}}, func(raft.RPC) { answered = true })
		return answered
	}
	if answered := beat(); !answered && r.State() == raft.Follower {
		t.Fatal("a follower did not answer a heartbeat of its term")
	}
	terms.changing = true
	if beat() {
		t.Fatal("a heartbeat was answered while the term changed")
	}
	terms.changing = false
	<-r.LeaderCh()
	if beat() {
		t.Fatal("a leader answered a heartbeat beside its main goroutine")
	}
}

// heldTerm is a term that changes while changing is set.
type heldTerm struct{ changing bool }

func (h *heldTerm) TryHoldTerm() (func(), bool) { return func() {}, !h.changing }
func (*heldTerm) Stopping() <-chan struct{}     { return nil }
