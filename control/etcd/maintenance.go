package etcd

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Version is the version of etcd whose API is served. Clients choose features by it.
const Version = "3.6.8"

// maintenanceService is etcd's Maintenance service.
type maintenanceService struct{ *Server }

// Alarm implements etcdserverpb.MaintenanceServer: there are none.
func (s *maintenanceService) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	if r.Action == pb.AlarmRequest_ACTIVATE {
		return nil, status.Error(codes.Unimplemented, "etcd API: alarms cannot be raised by clients; `balsa status` shows faults")
	}
	return &pb.AlarmResponse{Header: s.header(new(pb.ResponseHeader), s.store.View().Revision())}, nil
}

// Status implements etcdserverpb.MaintenanceServer.
func (s *maintenanceService) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	v, p := s.store.View(), s.store.Progress()
	leader, term := s.store.Leader()
	res := &pb.StatusResponse{
		Header:           s.header(new(pb.ResponseHeader), v.Revision()),
		Version:          Version,
		StorageVersion:   "3.6.0",
		RaftTerm:         term,
		RaftIndex:        p.CommitIndex,
		RaftAppliedIndex: p.AppliedIndex,
		IsLearner:        s.learner(),
		DbSize:           s.size.of(s.space, v),
		DowngradeInfo:    &pb.DowngradeInfo{},
	}
	res.DbSizeInUse = res.DbSize
	if leader != "" {
		res.Leader = shortID(leader)
	} else {
		res.Errors = append(res.Errors, "etcdserver: no leader")
	}
	if err := s.store.Err(); err != nil && leader != "" {
		res.Errors = append(res.Errors, err.Error())
	}
	return res, nil
}

func (s *Server) learner() bool {
	servers, err := s.store.Servers()
	if err != nil {
		return false
	}
	id := s.store.ServerID()
	return slices.ContainsFunc(servers, func(o raftstore.Server) bool { return o.ID == id && !o.Voter })
}

// sizeMemo caches the total size of the clients' keys and values, because computing it scans all keys.
type sizeMemo struct {
	mu    sync.Mutex
	at    time.Time
	rev   int64
	bytes int64
}

const sizeAge = 10 * time.Second

func (m *sizeMemo) of(space keyspace, v *raftstore.View) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rev == v.Revision() || !m.at.IsZero() && time.Since(m.at) < sizeAge {
		return m.bytes
	}
	m.at, m.rev, m.bytes = time.Now(), v.Revision(), 0
	v.Ascend(space.prefix, space.end, func(kv *raftstore.KeyValue) bool {
		m.bytes += int64(len(kv.Key) - len(space.prefix) + len(kv.Value))
		return true
	})
	return m.bytes
}

// Defragment implements etcdserverpb.MaintenanceServer: there is no file to defragment, so it does nothing and succeeds.
func (s *maintenanceService) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("etcd API: a client requested a defragmentation; the store needs none")
	return &pb.DefragmentResponse{Header: s.header(new(pb.ResponseHeader), s.store.View().Revision())}, nil
}

// Hash implements etcdserverpb.MaintenanceServer.
func (s *maintenanceService) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	v := s.store.View()
	sum, err := s.hash(ctx, v)
	if err != nil {
		return nil, err
	}
	return &pb.HashResponse{Header: s.header(new(pb.ResponseHeader), v.Revision()), Hash: sum}, nil
}

// HashKV implements etcdserverpb.MaintenanceServer: a checksum of the clients'
// keys as they were at a revision, equal on every server that knows it.
func (s *maintenanceService) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	newest := s.store.View()
	v, err := s.at(newest, r.Revision)
	if err != nil {
		return nil, wireError(ctx, err)
	}
	sum, err := s.hash(ctx, v)
	if err != nil {
		return nil, err
	}
	return &pb.HashKVResponse{
		Header:          s.header(new(pb.ResponseHeader), newest.Revision()),
		Hash:            sum,
		HashRevision:    v.Revision(),
		CompactRevision: parseRevision(v.Get(s.space.compactKey())),
	}, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// hash returns a checksum of the clients' keys in v. It runs for one caller at a time, because it reads all keys and
// values.
func (s *Server) hash(ctx context.Context, v *raftstore.View) (uint32, error) {
	if err := s.exclusive(ctx); err != nil {
		return 0, err
	}
	defer s.release()
	sum, buf := crc32.Checksum(nil, castagnoli), make([]byte, 0, 256)
	v.Ascend(s.space.prefix, s.space.end, func(kv *raftstore.KeyValue) bool {
		buf = binary.AppendUvarint(buf[:0], uint64(len(kv.Key)))
		buf = append(buf, kv.Key...)
		for _, n := range [...]int64{kv.CreateRevision, kv.ModRevision, kv.Version, int64(kv.Lease), int64(len(kv.Value))} {
			buf = binary.AppendVarint(buf, n)
		}
		sum = crc32.Update(crc32.Update(sum, castagnoli, buf), castagnoli, kv.Value)
		return ctx.Err() == nil
	})
	return sum, ctx.Err()
}

// exclusive waits until no other request hashes or sends the whole key space.
func (s *Server) exclusive(ctx context.Context) error {
	select {
	case s.hashing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.done:
		return rpctypes.ErrGRPCStopped
	}
}

func (s *Server) release() { <-s.hashing }

// MoveLeader implements etcdserverpb.MaintenanceServer.
func (s *maintenanceService) MoveLeader(ctx context.Context, r *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	if !s.store.Leading() {
		return nil, rpctypes.ErrGRPCNotLeader
	}
	servers, err := s.store.Servers()
	if err != nil {
		return nil, wireError(ctx, err)
	}
	i := slices.IndexFunc(servers, func(o raftstore.Server) bool { return shortID(o.ID) == r.TargetID && o.Voter })
	if i < 0 {
		return nil, rpctypes.ErrGRPCBadLeaderTransferee
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.store.TransferLeadership(bounded, servers[i].ID); err != nil {
		return nil, wireError(ctx, err)
	}
	return &pb.MoveLeaderResponse{Header: s.header(new(pb.ResponseHeader), s.store.View().Revision())}, nil
}

// Downgrade implements etcdserverpb.MaintenanceServer.
func (s *maintenanceService) Downgrade(ctx context.Context, _ *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.Unimplemented, "etcd API: there is no older etcd to go back to; another version of balsa is installed in place")
}
