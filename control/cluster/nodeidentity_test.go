package cluster_test

import (
	"testing"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
)

func TestWhoseNodeACertificateIs(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	o := w.options(w.token(s1, false, 0), false, "a1", s1.addr)
	if _, err := join.Join(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	agent, err := join.OpenAgent(o.Dir, w.now, w.log)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := s1.NodeOf(agent.Client.Certificate()); name != "a1" || err != nil {
		t.Errorf("an agent: %q, %v", name, err)
	}
	peer, err := s1.pki.Peer(s1.id)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := s1.NodeOf(peer.Certificate()); name != s1.name || err != nil {
		t.Errorf("a server: %q, %v", name, err)
	}
	if name, err := s1.NodeOf(agent.Services.Certificate()); err == nil {
		t.Errorf("what reads Services is node %q", name)
	}
	if name, err := s1.NodeOf(s1.pki.Admin().Certificate()); err == nil {
		t.Errorf("the administrator is node %q", name)
	}
	// Who has the name now is who has its key.
	forged, err := s1.pki.NodeClient("a1")
	if err != nil {
		t.Fatal(err)
	}
	if name, err := s1.NodeOf(forged.Certificate()); err == nil {
		t.Errorf("a certificate of another key is node %q", name)
	}
	if _, err := w.admin(s1).Remove(t.Context(), &clusterpb.RemoveRequest{Member: "a1"}); err != nil {
		t.Fatal(err)
	}
	if name, err := s1.NodeOf(agent.Client.Certificate()); err == nil {
		t.Errorf("a removed agent is node %q", name)
	}
}
