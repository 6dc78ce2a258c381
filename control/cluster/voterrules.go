package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// Errors of a change of membership.
var (
	// ErrUnknown means that no member has the name or ID.
	ErrUnknown = errors.New("no such member")
	// ErrHarm means that the change is refused because it would harm the cluster or a member that is alive.
	ErrHarm = errors.New("refused")
)

// Everything in this file is a function of values: what a change of the configuration would do.

// quorum is how many of n voters must agree.
func quorum(n int) int { return n/2 + 1 }

// voters returns the IDs of the voters, and how many of them are alive by gossip. self counts as alive.
func voters(servers []raftstore.Server, gossip []member.Member, self string) (all []string, alive int) {
	for _, s := range servers {
		if !s.Voter {
			continue
		}
		all = append(all, s.ID)
		if state, ok := gossipState(gossip, s.ID); s.ID == self || ok && state == member.StateAlive {
			alive++
		}
	}
	return all, alive
}

// checkVoterLoss returns an error when the cluster cannot lose the vote of a server. The remaining servers need at least one
// voter, and a quorum of live ones. A server without a vote can be lost.
func checkVoterLoss(servers []raftstore.Server, gossip []member.Member, self, id string) error {
	if !slices.Contains(servers, raftstore.Server{ID: id, Voter: true}) {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(servers), func(s raftstore.Server) bool { return s.ID == id })
	all, alive := voters(rest, gossip, self)
	if len(all) == 0 {
		return fmt.Errorf("server %s is the only voter: promote another one first: %w", short(id), ErrHarm)
	}
	if alive < quorum(len(all)) {
		return fmt.Errorf("without server %s only %d of %d voters would be alive, %d are needed: bring others back first: %w",
			short(id), alive, len(all), quorum(len(all)), ErrHarm)
	}
	return nil
}

// checkPromotion returns an error when a learner should not get a vote.
func checkPromotion(servers []raftstore.Server, id string) error {
	i := slices.IndexFunc(servers, func(s raftstore.Server) bool { return s.ID == id })
	if i < 0 {
		return fmt.Errorf("server %s is not in the configuration: %w", short(id), ErrUnknown)
	}
	if servers[i].Voter {
		return nil
	}
	all, _ := voters(servers, nil, "")
	if n := len(all) + 1; n%2 == 0 {
		return fmt.Errorf("%d voters survive no more failures than %d, and writes get slower: the cluster promotes learners by itself when their number is right; --force does it anyway: %w", n, n-1, ErrHarm)
	}
	return nil
}

// findServer returns the ID of the server with this ID, beginning of an ID, or name.
func findServer(ref string, servers []raftstore.Server, records map[string]MemberRecord) (string, error) {
	ids := map[string]bool{}
	for _, s := range servers {
		ids[s.ID] = true
	}
	for id := range records {
		ids[id] = true
	}
	var found []string
	for id := range ids {
		if id == ref || records[id].Name == ref || len(ref) >= 8 && strings.HasPrefix(id, ref) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%q is no server's ID, beginning of an ID, or name: see `balsa members`: %w", ref, ErrUnknown)
	case 1:
		return found[0], nil
	}
	// A former server may have had the same name: the one in the configuration counts.
	in := slices.DeleteFunc(slices.Clone(found), func(id string) bool { return !inConfiguration(servers, id) })
	if len(in) == 1 {
		return in[0], nil
	}
	slices.Sort(found)
	return "", fmt.Errorf("%q may be any of %s: give an ID: %w", ref, strings.Join(found, ", "), ErrUnknown)
}
