package cluster

import (
	"errors"
	"fmt"
	"slices"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// Why a machine may not join. The wrapped text says what to do.
var (
	// ErrNameTaken means that the name belongs to another machine.
	ErrNameTaken = errors.New("name is taken")
	// ErrVersion means that the machine's version is too far from the cluster's.
	ErrVersion = errors.New("versions do not fit")
	// ErrRemoved means that the server was removed for good.
	ErrRemoved = errors.New("server was removed")
)

// Everything in this file is a function of values.

// serverFacts is everything that decides whether a server may join.
type serverFacts struct {
	id, name string
	records  map[string]MemberRecord
	removed  bool
	nodes    map[string]nodeRecord
	raft     []raftstore.Server
	gossip   []member.Member
}

// admitServer returns an error that says why a server may not join. A server that has joined before may join again.
func admitServer(f serverFacts) error {
	if f.removed {
		return fmt.Errorf("server %s was removed from this cluster: empty its data directory (server/) and join with a new token: %w", short(f.id), ErrRemoved)
	}
	if rec, ok := f.records[f.id]; ok && rec.Name != f.name {
		return fmt.Errorf("server %s is a member by the name %q, not %q: keep its --node-name, or empty its data directory (server/): %w", short(f.id), rec.Name, f.name, ErrNameTaken)
	}
	for id, rec := range f.records {
		if id == f.id || rec.Name != f.name {
			continue
		}
		if state, ok := gossipState(f.gossip, id); ok && state == member.StateAlive {
			return fmt.Errorf("server %s is alive under the name %q: give this machine another --node-name: %w", short(id), f.name, ErrNameTaken)
		} else if !ok && inConfiguration(f.raft, id) {
			return fmt.Errorf("server %s has joined under the name %q and not been seen yet: give this machine another --node-name, or `balsa members remove %s --force` first: %w", short(id), f.name, short(id), ErrNameTaken)
		}
	}
	for _, m := range f.gossip {
		if m.Name == f.name && m.State == member.StateAlive && m.ServerID != f.id {
			return fmt.Errorf("a live %s at %s has the name %q: give this machine another --node-name: %w", m.Role, m.Addr, f.name, ErrNameTaken)
		}
	}
	return nil
}

// agentFacts is everything that decides whether an agent may join.
type agentFacts struct {
	name, key string
	replace   bool   // the machine wants the name of another
	replaces  string // the name that the administrator's token gives away
	record    *nodeRecord
	servers   map[string]MemberRecord
	gossip    []member.Member
}

// admitAgent returns an error that says why an agent may not join. An agent that has joined before with the same key may join again.
func admitAgent(f agentFacts) error {
	if err := checkServerNames(f.name, f.servers); err != nil {
		return err
	}
	if f.replaces != "" && f.replaces != f.name {
		return fmt.Errorf("this token is for a machine that replaces node %q: %w", f.replaces, ErrNameTaken)
	}
	if f.record != nil && f.record.has(f.key) {
		return nil
	}
	if i := slices.IndexFunc(f.gossip, func(m member.Member) bool { return m.Name == f.name && m.State == member.StateAlive }); i >= 0 {
		return fmt.Errorf("a live node at %s has the name %q: give this machine another --node-name: %w", f.gossip[i].Addr, f.name, ErrNameTaken)
	}
	switch {
	case f.record == nil || f.replace && f.replaces == f.name:
		return nil
	case f.replace:
		return fmt.Errorf("to replace node %q needs a token made for that, `balsa token create --replace %s`: %w", f.name, f.name, ErrNameTaken)
	}
	return fmt.Errorf("node %q joined before with another key and is gone: if this machine takes its place, `balsa members remove %s` first, or join with --replace and a token of `balsa token create --replace %s`: %w", f.name, f.name, f.name, ErrNameTaken)
}

// checkServerNames returns an error when a server, dead or alive, has the name: clients know the API by servers' names.
func checkServerNames(name string, servers map[string]MemberRecord) error {
	for id, rec := range servers {
		if rec.Name == name {
			return fmt.Errorf("server %s has the name %q: give this machine another --node-name, or `balsa members remove %s` first if it is gone for good: %w", short(id), name, short(id), ErrNameTaken)
		}
	}
	return nil
}

// gossipState returns the state of a server by gossip; ok is false when gossip does not know it.
func gossipState(gossip []member.Member, serverID string) (member.State, bool) {
	for _, m := range gossip {
		if m.ServerID == serverID {
			return m.State, true
		}
	}
	return "", false
}

func inConfiguration(servers []raftstore.Server, id string) bool {
	return slices.ContainsFunc(servers, func(s raftstore.Server) bool { return s.ID == id })
}

// short returns the beginning of a server's ID, for messages.
func short(id string) string { return id[:min(8, len(id))] }
