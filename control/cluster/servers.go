package cluster

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/balsahq/balsa/control/auth/rotation"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// serverList is where the servers are, this one first: the addresses are those of their records, which each server writes
// itself. Whether they live is gossip's hint.
func (s *Service) serverList(v *raftstore.View) []*clusterpb.ServerAddress {
	own := s.cfg.Store.ServerID()
	out := []*clusterpb.ServerAddress{{ServerId: own, Name: s.cfg.Name, Address: s.cfg.Address(), Live: true}}
	gossip := s.cfg.Members.Members()
	for id, rec := range Records(v) {
		if id == own {
			continue
		}
		state, _ := gossipState(gossip, id)
		a := &clusterpb.ServerAddress{ServerId: id, Name: rec.Name, Live: state == member.StateAlive}
		if len(rec.Addresses) > 0 {
			a.Address = rec.Addresses[0]
		}
		out = append(out, a)
	}
	slices.SortFunc(out[1:], func(a, b *clusterpb.ServerAddress) int { return cmp.Compare(a.ServerId, b.ServerId) })
	return out
}

// allMembers returns the servers with their state by gossip, and the agents on record with their state by their connections.
func (s *Service) allMembers(v *raftstore.View) []member.Member {
	out := s.cfg.Members.Members()
	for _, p := range s.cfg.Nodes.Presences() {
		if v.Get(nodesPrefix+p.Node) == nil { // a server's node, or one that was removed
			continue
		}
		m := member.Member{Meta: member.Meta{Name: p.Node, Role: member.RoleAgent}, State: member.StateFailed, Since: p.Since}
		if p.Alive {
			m.State = member.StateAlive
		}
		out = append(out, m)
	}
	return out
}

// announcement is what agents follow: where the servers are, and which CAs and keys count.
func (s *Service) announcement(v *raftstore.View) *clusterpb.ServerList {
	out := &clusterpb.ServerList{Servers: s.serverList(v), Ca: s.cfg.PKI.CA()}
	if rec, _, err := read[rotation.Record](v, rotationKey); err == nil {
		wanted := rec.ForAgents(s.rotationMembers(v))
		out.IssuedBy, out.PodsHold = wanted.IssuedBy, wanted.PodsHold
	}
	return out
}

// broadcast is the newest announcement, for any number of readers.
type broadcast struct {
	mu      sync.Mutex
	list    *clusterpb.ServerList // not changed once it is here; nil at first
	changed chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{changed: make(chan struct{})} }

// publish replaces the list; readers hear of it when it says something new.
func (b *broadcast) publish(list *clusterpb.ServerList) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.list != nil && proto.Equal(b.list, list) {
		return
	}
	b.list = list
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *broadcast) get() (*clusterpb.ServerList, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list, b.changed
}

// Servers implements clusterpb.ClusterServer.
func (s *Service) Servers(_ *clusterpb.ServersRequest, stream clusterpb.Cluster_ServersServer) error {
	ctx := stream.Context()
	who, err := s.authorize(ctx, members)
	if err != nil {
		return err
	}
	for {
		list, changed := s.servers.get()
		if who.kind == nodeCaller { // it may have been removed meanwhile
			if err := s.checkNode(who); err != nil {
				return err
			}
		}
		if list != nil {
			if err := stream.Send(list); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// mostAsked bounds the nodes of one call of Hears.
const mostAsked = 1 << 14

// Hears implements clusterpb.ClusterServer.
func (s *Service) Hears(ctx context.Context, r *clusterpb.HearsRequest) (*clusterpb.HearsResponse, error) {
	if _, err := s.authorize(ctx, managers); err != nil {
		return nil, err
	}
	if len(r.Nodes) > mostAsked {
		return nil, status.Errorf(codes.InvalidArgument, "at most %d nodes", mostAsked)
	}
	return &clusterpb.HearsResponse{Nodes: s.cfg.Nodes.Heard(r.Nodes)}, nil
}
