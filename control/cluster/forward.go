package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
)

const (
	// forwardedBy marks a call that another server passed on: it goes no further.
	forwardedBy = "balsa-forwarded-by"
	// joiningAs is the ID of a server that proved it to the one that passes its call on.
	joiningAs = "balsa-joining-as"

	leaderPatience = 10 * time.Second // how long a call waits for a leader
	leaderRetry    = 100 * time.Millisecond
)

// callOnLeader lets the leader answer a call: locally, or by the same request to the leader. It waits a while for a leader.
// The call must be safe to repeat.
func callOnLeader[T any](ctx context.Context, s *Service, here func(context.Context) (T, error), there func(context.Context, clusterpb.ClusterClient) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	_, forwarded := valueFrom(ctx, forwardedBy)
	for {
		changed := s.cfg.Store.LeaderChanged()
		answer, err := tryLeader(ctx, s, forwarded, here, there)
		again := errors.Is(err, raftstore.ErrNotLeader) || errors.Is(err, raftstore.ErrNoLeader) || status.Code(err) == codes.Unavailable
		if !again || forwarded {
			return answer, wire(err)
		}
		select {
		case <-ctx.Done():
			return answer, status.Error(codes.Unavailable, "the cluster has no leader that answers; too few servers are alive, or try again: "+err.Error())
		case <-changed:
		case <-time.After(leaderRetry): // a leader that is known need not be ready
		}
	}
}

func tryLeader[T any](ctx context.Context, s *Service, forwarded bool, here func(context.Context) (T, error), there func(context.Context, clusterpb.ClusterClient) (T, error)) (T, error) {
	var none T
	leader, _ := s.cfg.Store.Leader()
	switch {
	case leader == s.cfg.Store.ServerID():
		if !s.cfg.Store.Leading() {
			return none, raftstore.ErrNotLeader
		}
		return here(ctx)
	case leader == "":
		return none, raftstore.ErrNoLeader
	case forwarded:
		return none, raftstore.ErrNotLeader
	}
	client, err := s.peer(ctx, leader)
	if err != nil {
		return none, err
	}
	return there(s.forwarding(ctx), client)
}

func (s *Service) forwarding(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, forwardedBy, s.cfg.Store.ServerID())
}

// peer is another server's service.
func (s *Service) peer(ctx context.Context, id string) (clusterpb.ClusterClient, error) {
	conn, err := s.cfg.DialServer(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("%w: server %s: %w", raftstore.ErrUnreachable, short(id), err)
	}
	return clusterpb.NewClusterClient(conn), nil
}

// valueFrom reads what a server that passes a call on says. Of others it says nothing: who may call decides.
func valueFrom(ctx context.Context, key string) (string, bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(key); len(v) == 1 {
		return v[0], true
	}
	return "", false
}
