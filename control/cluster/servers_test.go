package cluster_test

import (
	"testing"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore/member"
)

// TestAgentsAreToldOfServersByTheirRecords: what gossip says of addresses reaches no agent, what it says of life does.
func TestAgentsAreToldOfServersByTheirRecords(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	o := w.options(w.token(s1, false, 0), false, "a1", s1.addr)
	if _, err := join.Join(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	agent, err := join.OpenAgent(o.Dir, w.now, w.log)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := w.as(s1, agent.Client.GetClientCertificate).Servers(t.Context(), &clusterpb.ServersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// wait reads until the list says this of s2.
	wait := func(live bool) {
		t.Helper()
		for {
			list, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if list.Servers[0].ServerId != s1.id {
				t.Errorf("the asked server is not the first of %v", list)
			}
			for _, s := range list.Servers {
				if s.Address == "192.0.2.66:6443" {
					t.Fatal("an address that only gossip has is told to an agent")
				}
				if s.ServerId == s2.id && s.Address == s2.addr && s.Live == live {
					return
				}
			}
		}
	}
	wait(true)
	w.gossip.say(member.Member{Meta: member.Meta{ServerID: s2.id, Name: "s2", Role: member.RoleServer, APIAddr: "192.0.2.66:6443"}, State: member.StateFailed})
	wait(false)
}
