package peer

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// beat makes from send a heartbeat to to, over a connection that stays.
func beat(t *testing.T, from, to *member) {
	t.Helper()
	to.Transport().SetHeartbeatHandler(func(r raft.RPC) { r.Respond(&raftAppended{RPCHeader: raft.RPCHeader{ProtocolVersion: 3}}, nil) })
	req := &raftAppend{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte(from.id)}, Term: 1}
	must(t, from.Transport().AppendEntries(raftID(to), "", req, &raftAppended{}))
}

func TestThePeersOfAProcessThatEndedHearOfIt(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	ended := make(chan string, 8)
	b.Serve(handler{ended: ended})
	beat(t, a, b)
	a.stopPort()
	a.stopNet()
	select {
	case id := <-ended:
		if id != a.id {
			t.Fatal("ended:", id)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody heard")
	}
}

func TestAPeerThatOnlyClosesAConnectionHasNotEnded(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	ended := make(chan string, 8)
	b.Serve(handler{ended: ended})
	for range 5 {
		beat(t, a, b)
		a.Drop(b.id)
		b.Drop(a.id) // and by its own doing
	}
	b.stopNet() // waits for whoever looks
	if len(ended) > 0 {
		t.Fatal("ended:", <-ended)
	}
}
