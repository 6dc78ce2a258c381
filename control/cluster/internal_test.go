package cluster

import (
	"errors"
	"testing"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

func TestWhoMayBeSpared(t *testing.T) {
	servers := func(voters ...string) (out []raftstore.Server) {
		for _, v := range voters {
			out = append(out, raftstore.Server{ID: v, Voter: true})
		}
		return append(out, raftstore.Server{ID: "learner"})
	}
	alive := func(ids ...string) (out []member.Member) {
		for _, id := range ids {
			out = append(out, member.Member{Meta: member.Meta{ServerID: id}, State: member.StateAlive})
		}
		return out
	}
	for _, c := range []struct {
		what    string
		servers []raftstore.Server
		gossip  []member.Member
		id      string
		harm    bool
	}{
		{"the only voter", servers("a"), alive("a"), "a", true},
		{"a learner", servers("a"), alive("a"), "learner", false},
		{"one of three", servers("a", "b", "c"), alive("a", "b", "c"), "c", false},
		{"the dead one of three", servers("a", "b", "c"), alive("a", "b"), "c", false},
		{"a live one of three with one dead", servers("a", "b", "c"), alive("a", "b"), "b", true},
		{"the dead one of two", servers("a", "b"), alive("a"), "b", false},
		{"a live one of five with two dead", servers("a", "b", "c", "d", "e"), alive("a", "b", "c"), "c", true},
		{"a dead one of five with two dead", servers("a", "b", "c", "d", "e"), alive("a", "b", "c"), "e", false},
		{"gossip has heard nothing yet", servers("a", "b", "c"), nil, "b", true},
	} {
		if err := checkVoterLoss(c.servers, c.gossip, "a", c.id); (err != nil) != c.harm || err != nil && !errors.Is(err, ErrHarm) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
