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
	// ErrNameTaken: the name belongs to another machine.
	ErrNameTaken = errors.New("name is taken")
	// ErrVersion: the versions do not fit.
	ErrVersion = errors.New("versions do not fit")
	// ErrRemoved: the server was removed for good.
	ErrRemoved = errors.New("server was removed")
)

// Everything in this file is a function of values: who may join, given what is known.

// serverFacts is what decides whether a server may join.
type serverFacts struct {
	id, name string
	records  map[string]MemberRecord
	removed  bool
	nodes    map[string]nodeRecord
	raft     []raftstore.Server
	gossip   []member.Member
}

// admitServer says why a server may not join; nil when it may, also when it has joined before.
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
		if state, ok := stateOf(f.gossip, id); ok && state == member.StateAlive {
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

// agentFacts is what decides whether an agent may join.
type agentFacts struct {
	name, key string
	replace   bool   // the machine wants the name of another
	replaces  string // the name that the administrator's token gives away
	record    *nodeRecord
	servers   map[string]MemberRecord
	gossip    []member.Member
}

// admitAgent says why an agent may not join; nil when it may, also when it has joined before with the same key.
func admitAgent(f agentFacts) error {
	if err := notAServers(f.name, f.servers); err != nil {
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

// notAServers returns why no agent may have a server's name, dead or alive: clients know the API by it.
func notAServers(name string, servers map[string]MemberRecord) error {
	for id, rec := range servers {
		if rec.Name == name {
			return fmt.Errorf("server %s has the name %q: give this machine another --node-name, or `balsa members remove %s` first if it is gone for good: %w", short(id), name, short(id), ErrNameTaken)
		}
	}
	return nil
}

// stateOf is what gossip says of a server; ok is false when it never heard of it.
func stateOf(gossip []member.Member, serverID string) (member.State, bool) {
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

// short is the beginning of a server's ID, for people.
func short(id string) string { return id[:min(8, len(id))] }
