package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// maxTTL is the longest lease, in seconds: ten years, as in the store.
const maxTTL = 10 * 365 * 24 * 3600

// leaseService is etcd's Lease service.
//
// The store has one set of leases for all its users. The ID shows which leases belong to etcd's clients: this API assigns
// even IDs, the store odd ones. If a client chooses an odd ID, a key outside the clients' prefix marks it; the key is
// attached to the lease. Leases of other users are not found.
type leaseService struct{ *Server }

func (s keyspace) leaseKey(id int64) string {
	return fmt.Sprintf("%s.leases/%016x", strings.TrimSuffix(s.prefix, "/"), uint64(id))
}

// owns reports whether a lease belongs to etcd's clients in v.
func (s *Server) owns(v *raftstore.View, id int64) bool {
	return id > 0 && (id&1 == 0 || v.Get(s.space.leaseKey(id)) != nil)
}

// ownLease refuses a lease that is not one of etcd's clients.
func (s *Server) ownLease(ctx context.Context, id int64) error {
	if s.owns(s.store.View(), id) {
		return nil
	}
	if id <= 0 {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	v, err := s.newest(ctx, false)
	if err != nil {
		return err
	}
	if !s.owns(v, id) {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	return nil
}

func randomEven() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(binary.BigEndian.Uint64(b[:])>>1)&^1 | 1<<32
}

// LeaseGrant implements etcdserverpb.LeaseServer. The shortest lease lives for
// a second.
func (s *leaseService) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	if r.TTL > maxTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	id, ttl := r.ID, max(r.TTL, 1)
	if id == 0 {
		id = randomEven()
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	if _, err := s.store.LeaseGrant(bounded, raftstore.LeaseID(id), time.Duration(ttl)*time.Second); err != nil {
		return nil, wireError(ctx, err)
	}
	if id&1 == 1 {
		_, err := s.write(ctx, raftstore.Txn{Success: []raftstore.Op{
			{Type: raftstore.OpPut, Key: s.space.leaseKey(id), Lease: raftstore.LeaseID(id)},
		}})
		if err != nil {
			return nil, err
		}
	}
	h := s.header(new(pb.ResponseHeader), s.store.View().Revision())
	return &pb.LeaseGrantResponse{Header: h, ID: id, TTL: ttl}, nil
}

// LeaseRevoke implements etcdserverpb.LeaseServer.
func (s *leaseService) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	if err := s.ownLease(ctx, r.ID); err != nil {
		return nil, err
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.store.LeaseRevoke(bounded, raftstore.LeaseID(r.ID)); err != nil {
		return nil, wireError(ctx, err)
	}
	return &pb.LeaseRevokeResponse{Header: s.header(new(pb.ResponseHeader), s.store.View().Revision())}, nil
}

// LeaseKeepAlive implements etcdserverpb.LeaseServer.
func (s *leaseService) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	ctx := stream.Context()
	if err := s.authorize(ctx); err != nil {
		return err
	}
	var (
		res pb.LeaseKeepAliveResponse
		h   pb.ResponseHeader
	)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// Before the renewal, so that a client never sees a revision in which
		// the lease it renewed was gone.
		s.header(&h, s.store.View().Revision())
		ttl, err := s.keepAlive(ctx, r.ID)
		if err != nil {
			return err
		}
		res = pb.LeaseKeepAliveResponse{Header: &h, ID: r.ID, TTL: ttl}
		if err := stream.Send(&res); err != nil {
			return err
		}
	}
}

// keepAlive renews a lease and returns its time in seconds, 0 when there is no
// such lease.
func (s *leaseService) keepAlive(ctx context.Context, id int64) (int64, error) {
	if !s.owns(s.store.View(), id) {
		if err := s.ownLease(ctx, id); err != nil {
			return 0, none(err)
		}
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	ttl, err := s.store.LeaseKeepAlive(bounded, raftstore.LeaseID(id))
	if err != nil {
		return 0, none(wireError(ctx, err))
	}
	return int64(ttl / time.Second), nil
}

// none returns nil if err says that the lease does not exist, else err.
func none(err error) error {
	if errors.Is(err, rpctypes.ErrGRPCLeaseNotFound) {
		return nil
	}
	return err
}

// LeaseTimeToLive implements etcdserverpb.LeaseServer.
func (s *leaseService) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	v, err := s.newest(ctx, false)
	if err != nil {
		return nil, err
	}
	res := &pb.LeaseTimeToLiveResponse{Header: s.header(new(pb.ResponseHeader), v.Revision()), ID: r.ID, TTL: -1}
	granted, ok := s.granted(r.ID)
	if !ok || !s.owns(v, r.ID) {
		return res, nil
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	left, err := s.store.LeaseRemaining(bounded, raftstore.LeaseID(r.ID))
	if err != nil {
		return res, none(wireError(ctx, err))
	}
	res.TTL, res.GrantedTTL = int64(left/time.Second), int64(granted/time.Second)
	if r.Keys {
		res.Keys = s.leaseKeys(v, r.ID)
	}
	return res, nil
}

// granted returns the time for which a lease was granted.
func (s *Server) granted(id int64) (time.Duration, bool) {
	for _, l := range s.store.Leases() {
		if l.ID == raftstore.LeaseID(id) {
			return l.TTL, true
		}
	}
	return 0, false
}

// leaseKeys returns the keys of a lease. It scans all keys.
func (s *Server) leaseKeys(v *raftstore.View, id int64) (keys [][]byte) {
	v.Ascend(s.space.prefix, s.space.end, func(kv *raftstore.KeyValue) bool {
		if kv.Lease == raftstore.LeaseID(id) {
			keys = append(keys, s.space.client(kv.Key))
		}
		return true
	})
	return keys
}

// LeaseLeases implements etcdserverpb.LeaseServer.
func (s *leaseService) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	v, err := s.newest(ctx, false)
	if err != nil {
		return nil, err
	}
	res := &pb.LeaseLeasesResponse{Header: s.header(new(pb.ResponseHeader), v.Revision())}
	for _, l := range s.store.Leases() {
		if s.owns(v, int64(l.ID)) {
			res.Leases = append(res.Leases, &pb.LeaseStatus{ID: int64(l.ID)})
		}
	}
	return res, nil
}
