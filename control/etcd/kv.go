package etcd

import (
	"context"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// kvService is etcd's KV service.
type kvService struct{ *Server }

// Range implements etcdserverpb.KVServer.
func (s *kvService) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	if err := checkRange(r); err != nil {
		return nil, err
	}
	newest, err := s.newest(ctx, r.Serializable)
	if err != nil {
		return nil, err
	}
	v, err := s.at(newest, r.Revision)
	if err != nil {
		return nil, wireError(ctx, err)
	}
	if len(r.RangeEnd) == 0 && plain(r) {
		return s.one(v, newest.Revision(), r), nil
	}
	res := s.scan(v, r)
	s.header(res.Header, newest.Revision())
	return res, nil
}

// newest returns the state for a read: after a Barrier, or for a serializable read this server's current state.
func (s *Server) newest(ctx context.Context, serializable bool) (*raftstore.View, error) {
	if serializable {
		return s.store.View(), nil
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	v, err := s.store.Barrier(bounded)
	if err != nil {
		return nil, wireError(ctx, err)
	}
	return v, nil
}

// answer holds all parts of the answer to a read of one key, in one allocation.
type answer struct {
	pb.RangeResponse
	header pb.ResponseHeader
	kv     mvccpb.KeyValue
	kvs    [1]*mvccpb.KeyValue
}

// one answers a read of one key.
func (s *kvService) one(v *raftstore.View, newest int64, r *pb.RangeRequest) *pb.RangeResponse {
	a := &answer{}
	a.Header = s.header(&a.header, newest)
	kv := v.Get(s.space.key(r.Key))
	if kv == nil {
		return &a.RangeResponse
	}
	a.Count = 1
	if !r.CountOnly {
		s.space.fill(&a.kv, kv)
		if r.KeysOnly {
			a.kv.Value = nil
		}
		a.kvs[0] = &a.kv
		a.Kvs = a.kvs[:]
	}
	return &a.RangeResponse
}

// Put implements etcdserverpb.KVServer.
func (s *kvService) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := s.admit(ctx, r.Size()); err != nil {
		return nil, err
	}
	op, err := s.putOp(ctx, r)
	if err != nil {
		return nil, err
	}
	res, err := s.write(ctx, raftstore.Txn{Success: []raftstore.Op{op}})
	if err != nil {
		return nil, err
	}
	a := &struct {
		pb.PutResponse
		header pb.ResponseHeader
	}{}
	a.Header = s.header(&a.header, res.Revision)
	a.PrevKv = s.previous(&res.Results[0])
	return &a.PutResponse, nil
}

// admit checks the size of a request that may write.
func (s *Server) admit(ctx context.Context, size int) error {
	if err := s.authorize(ctx); err != nil {
		return err
	}
	if size > s.cfg.MaxRequestBytes {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return nil
}

// write runs a transaction; it returns the error for the client.
func (s *Server) write(ctx context.Context, t raftstore.Txn) (*raftstore.TxnResult, error) {
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	res, err := s.store.Txn(bounded, t)
	if err != nil {
		return nil, wireError(ctx, err)
	}
	return res, nil
}

func (s *Server) previous(r *raftstore.OpResult) *mvccpb.KeyValue {
	if len(r.PrevKVs) == 0 {
		return nil
	}
	kv := new(mvccpb.KeyValue)
	s.space.fill(kv, r.PrevKVs[0])
	return kv
}

// DeleteRange implements etcdserverpb.KVServer.
func (s *kvService) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := s.admit(ctx, r.Size()); err != nil {
		return nil, err
	}
	op, err := s.deleteOp(r)
	if err != nil {
		return nil, err
	}
	res, err := s.write(ctx, raftstore.Txn{Success: []raftstore.Op{op}})
	if err != nil {
		return nil, err
	}
	return s.deleted(&res.Results[0], s.header(new(pb.ResponseHeader), res.Revision)), nil
}

func (s *Server) deleted(r *raftstore.OpResult, h *pb.ResponseHeader) *pb.DeleteRangeResponse {
	return &pb.DeleteRangeResponse{Header: h, Deleted: r.Deleted, PrevKvs: s.space.list(r.PrevKVs, false)}
}
