package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

const (
	statsPatience = time.Second // how long Members waits for another server's Stats
	maxAsked      = 64
)

// Stats implements clusterpb.ClusterServer.
func (s *Service) Stats(ctx context.Context, r *clusterpb.StatsRequest) (*clusterpb.StatsResponse, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	store := s.cfg.Store
	answer := &clusterpb.StatsResponse{ServerId: store.ServerID(), Progress: progressOf(store.Progress()), Leading: store.Leading(),
		Generation: store.Generation(), Version: s.cfg.Version}
	if r.Hash {
		answer.HashIndex, answer.Hash = store.Hash()
	}
	return answer, nil
}

func progressOf(p raftstore.Progress) *clusterpb.Progress {
	return &clusterpb.Progress{LastIndex: p.LastIndex, CommitIndex: p.CommitIndex, AppliedIndex: p.AppliedIndex,
		SnapshotIndex: p.SnapshotIndex, Term: p.Term, LastContactMs: p.LastContact.Milliseconds()}
}

// Status implements clusterpb.ClusterServer.
func (s *Service) Status(ctx context.Context, _ *clusterpb.StatusRequest) (*clusterpb.StatusResponse, error) {
	if _, err := s.authorize(ctx, members); err != nil {
		return nil, err
	}
	store := s.cfg.Store
	servers, err := store.Servers()
	if err != nil {
		return nil, wire(err)
	}
	leader, _ := store.Leader()
	all, alive := voters(servers, s.cfg.Members.Members(), store.ServerID())
	p := store.Progress()
	answer := &clusterpb.StatusResponse{
		ServerId: store.ServerID(), Name: s.cfg.Name, ClusterId: store.ClusterID(), Generation: store.Generation(), Version: s.cfg.Version,
		Protocol: Protocol, LeaderId: leader, LeaderName: Records(store.View())[leader].Name, Progress: progressOf(p), Revision: p.Revision,
		Voters: int32(len(all)), VotersAlive: int32(alive), FailuresTolerated: int32(max(0, alive-quorum(len(all)))),
	}
	if leader == store.ServerID() {
		answer.LeaderName = s.cfg.Name
	}
	if err := store.Err(); err != nil {
		answer.Fault = err.Error()
	}
	return answer, nil
}

// Members implements clusterpb.ClusterServer.
func (s *Service) Members(ctx context.Context, _ *clusterpb.MembersRequest) (*clusterpb.MembersResponse, error) {
	if _, err := s.authorize(ctx, members); err != nil {
		return nil, err
	}
	servers, err := s.cfg.Store.Servers()
	if err != nil {
		return nil, wire(err)
	}
	leader, term := s.cfg.Store.Leader()
	v := s.cfg.Store.View()
	known := roster{self: s.cfg.Store.ServerID(), name: s.cfg.Name, version: s.cfg.Version, address: s.cfg.Address(), generation: s.cfg.Store.Generation(),
		leader: leader, servers: servers, gossip: s.allMembers(v), records: Records(v), nodes: readAll[nodeRecord](v, nodesPrefix)}
	known.progress = s.askProgress(ctx, known)
	return &clusterpb.MembersResponse{Members: known.list(), LeaderId: leader, Term: term}, nil
}

// askProgress asks the live servers, in parallel, how far they are; who does not answer in time is missing.
func (s *Service) askProgress(ctx context.Context, r roster) map[string]*clusterpb.StatsResponse {
	ctx, cancel := context.WithTimeout(ctx, statsPatience)
	defer cancel()
	out := map[string]*clusterpb.StatsResponse{r.self: {Progress: progressOf(s.cfg.Store.Progress()), Generation: r.generation}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, srv := range r.servers {
		if state, ok := gossipState(r.gossip, srv.ID); srv.ID == r.self || ok && state != member.StateAlive || i >= maxAsked {
			continue
		}
		wg.Go(fault.Contained("control/cluster", func() {
			client, err := s.peer(ctx, srv.ID)
			if err != nil {
				return
			}
			if stats, err := client.Stats(s.forwarding(ctx), &clusterpb.StatsRequest{}); err == nil {
				mu.Lock()
				out[srv.ID] = stats
				mu.Unlock()
			}
		}))
	}
	wg.Wait()
	return out
}

// roster is all that is known of the members, as values.
type roster struct {
	self, name, version, address string
	leader                       string
	generation                   int64
	servers                      []raftstore.Server
	gossip                       []member.Member
	records                      map[string]MemberRecord
	nodes                        map[string]nodeRecord
	progress                     map[string]*clusterpb.StatsResponse
}

// list puts the sources together: servers of the configuration, of the records and of gossip, then agents.
func (r roster) list() []*clusterpb.Member {
	servers, agents := map[string]*clusterpb.Member{}, map[string]*clusterpb.Member{}
	server := func(id string) *clusterpb.Member {
		if servers[id] == nil {
			servers[id] = &clusterpb.Member{ServerId: id, Role: clusterpb.Role_ROLE_SERVER, Lag: -1, Name: short(id)}
		}
		return servers[id]
	}
	for id, rec := range r.records {
		m := server(id)
		m.Name, m.Version, m.Protocol = rec.Name, rec.Version, int32(rec.Protocol)
		if len(rec.Addresses) > 0 {
			m.Address = rec.Addresses[0]
		}
	}
	for _, s := range r.servers {
		m := server(s.ID)
		m.Member, m.Voter, m.Leader = true, s.Voter, s.ID == r.leader
	}
	for name, rec := range r.nodes {
		agents[name] = &clusterpb.Member{Name: name, Role: clusterpb.Role_ROLE_AGENT, Lag: -1, Version: rec.Version}
		if len(rec.Addresses) > 0 {
			agents[name].Address = rec.Addresses[0]
		}
	}
	for _, g := range r.gossip {
		if g.ServerID != "" {
			seen(server(g.ServerID), g)
			continue
		}
		if agents[g.Name] == nil {
			agents[g.Name] = &clusterpb.Member{Role: clusterpb.Role_ROLE_AGENT, Lag: -1}
		}
		seen(agents[g.Name], g)
	}
	self := server(r.self)
	self.Name, self.Version, self.Protocol, self.Address, self.State = r.name, r.version, Protocol, r.address, clusterpb.State_STATE_ALIVE
	for id, m := range servers {
		m.Lag = r.lag(id)
		r.remark(m)
	}
	return sorted(servers, agents)
}

func seen(m *clusterpb.Member, g member.Member) {
	if g.Role == member.RoleAgent { // the rest is its record's to say
		m.Name, m.State, m.Since = g.Name, stateProto(g.State), g.Since.UnixMilli()
		return
	}
	m.Name, m.Version, m.Protocol, m.Generation = g.Name, g.Version, int32(g.Protocol), g.Generation
	m.State, m.Since = stateProto(g.State), g.Since.UnixMilli()
	if m.Address = g.APIAddr; m.Address == "" {
		m.Address = g.Addr
	}
}

func stateProto(s member.State) clusterpb.State {
	switch s {
	case member.StateAlive:
		return clusterpb.State_STATE_ALIVE
	case member.StateFailed:
		return clusterpb.State_STATE_FAILED
	case member.StateLeft:
		return clusterpb.State_STATE_LEFT
	}
	return clusterpb.State_STATE_UNSPECIFIED
}

// lag is how many entries a server is behind the furthest log that answered; -1 when it did not.
func (r roster) lag(id string) int64 {
	its := r.progress[id].GetProgress()
	if its == nil {
		return -1
	}
	last := its.CommitIndex
	for _, p := range r.progress {
		last = max(last, p.GetProgress().GetCommitIndex())
	}
	return int64(last - its.CommitIndex)
}

// remark says what is wrong with a server, for people.
func (r roster) remark(m *clusterpb.Member) {
	var notes []string
	if !m.Member {
		notes = append(notes, "not in the Raft configuration")
	}
	if m.Generation != 0 && m.Generation != r.generation {
		notes = append(notes, "of another generation of the cluster")
	}
	if m.Version != "" && r.version != "" && m.Version != r.version {
		notes = append(notes, "runs another version")
	}
	if m.Member && m.State == clusterpb.State_STATE_ALIVE && m.Lag < 0 {
		notes = append(notes, "does not answer")
	}
	m.Note = strings.Join(notes, "; ")
}

func sorted(servers, agents map[string]*clusterpb.Member) []*clusterpb.Member {
	var out []*clusterpb.Member
	for _, group := range []map[string]*clusterpb.Member{servers, agents} {
		from := len(out)
		for _, m := range group {
			out = append(out, m)
		}
		slices.SortFunc(out[from:], func(a, b *clusterpb.Member) int {
			if c := strings.Compare(a.Name, b.Name); c != 0 {
				return c
			}
			return strings.Compare(a.ServerId, b.ServerId)
		})
	}
	return out
}
