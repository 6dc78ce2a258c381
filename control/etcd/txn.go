package etcd

import (
	"context"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Txn implements etcdserverpb.KVServer.
func (s *kvService) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := s.admit(ctx, r.Size()); err != nil {
		return nil, err
	}
	t := translation{Server: s.Server, ctx: ctx}
	x, err := t.txn(r, s.cfg.MaxTxnOps)
	if err != nil {
		return nil, err
	}
	res, err := s.write(ctx, x)
	if err != nil {
		return nil, err
	}
	out := t.result(r, res)
	s.header(out.Header, res.Revision)
	return out, nil
}

// translation converts one request to a transaction of the store, and its result to the answer.
type translation struct {
	*Server
	ctx    context.Context
	newest *raftstore.View           // set once a read of the past was seen
	past   map[int64]*raftstore.View // by revision
}

// txn translates r; room is how many operations it may have. The store checks whether a key is written twice.
func (t *translation) txn(r *pb.TxnRequest, room int) (raftstore.Txn, error) {
	if r == nil {
		return raftstore.Txn{}, rpctypes.ErrGRPCKeyNotFound
	}
	n := max(len(r.Compare), len(r.Success), len(r.Failure))
	if n > room {
		return raftstore.Txn{}, rpctypes.ErrGRPCTooManyOps
	}
	var (
		x   raftstore.Txn
		err error
	)
	if x.Compares, err = t.compares(r.Compare); err != nil {
		return x, err
	}
	if x.Success, err = t.ops(r.Success, room-n); err != nil {
		return x, err
	}
	x.Failure, err = t.ops(r.Failure, room-n)
	return x, err
}

var relations = map[pb.Compare_CompareResult]raftstore.CompareResult{
	pb.Compare_EQUAL:     raftstore.Equal,
	pb.Compare_NOT_EQUAL: raftstore.NotEqual,
	pb.Compare_LESS:      raftstore.Less,
	pb.Compare_GREATER:   raftstore.Greater,
}

func (t *translation) compares(in []*pb.Compare) ([]raftstore.Compare, error) {
	out := make([]raftstore.Compare, len(in))
	for i, c := range in {
		if len(c.GetKey()) == 0 {
			return nil, rpctypes.ErrGRPCEmptyKey
		}
		o := &out[i]
		o.Key, o.RangeEnd = t.space.span(c.Key, c.RangeEnd)
		relation, ok := relations[c.Result]
		if !ok {
			return nil, errUnknown("relation", int32(c.Result))
		}
		o.Result = relation
		switch c.Target {
		case pb.Compare_VALUE:
			o.Target, o.Value = raftstore.CompareValue, c.GetValue()
		case pb.Compare_VERSION:
			o.Target, o.Int = raftstore.CompareVersion, c.GetVersion()
		case pb.Compare_CREATE:
			o.Target, o.Int = raftstore.CompareCreate, c.GetCreateRevision()
		case pb.Compare_MOD:
			o.Target, o.Int = raftstore.CompareMod, c.GetModRevision()
		case pb.Compare_LEASE:
			o.Target, o.Int = raftstore.CompareLease, c.GetLease()
		default:
			return nil, errUnknown("target", int32(c.Target))
		}
	}
	return out, nil
}

func (t *translation) ops(in []*pb.RequestOp, room int) ([]raftstore.Op, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make([]raftstore.Op, len(in))
	for i, op := range in {
		var err error
		switch o := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			out[i], err = t.rangeOp(o.RequestRange)
		case *pb.RequestOp_RequestPut:
			out[i], err = t.putOp(t.ctx, o.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
			out[i], err = t.deleteOp(o.RequestDeleteRange)
		case *pb.RequestOp_RequestTxn:
			var x raftstore.Txn
			x, err = t.txn(o.RequestTxn, room)
			out[i] = raftstore.Op{Type: raftstore.OpTxn, Txn: &x}
		default:
			err = rpctypes.ErrGRPCKeyNotFound
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// rangeOp translates a read. A read of an older revision runs outside the transaction, because no write can change its
// result; in the transaction a read without cost takes its place.
func (t *translation) rangeOp(r *pb.RangeRequest) (raftstore.Op, error) {
	if err := checkRange(r); err != nil {
		return raftstore.Op{}, err
	}
	if r.Revision > 0 {
		return raftstore.Op{Type: raftstore.OpRange, Key: t.space.prefix, CountOnly: true}, t.remember(r.Revision)
	}
	op := raftstore.Op{Type: raftstore.OpRange, CountOnly: r.CountOnly}
	op.Key, op.RangeEnd = t.space.span(r.Key, r.RangeEnd)
	if plain(r) {
		op.Limit = max(r.Limit, 0)
	}
	return op, nil
}

func (t *translation) remember(rev int64) error {
	if t.newest == nil {
		v, err := t.Server.newest(t.ctx, false)
		if err != nil {
			return err
		}
		t.newest, t.past = v, make(map[int64]*raftstore.View)
	}
	if t.past[rev] != nil {
		return nil
	}
	v, err := t.at(t.newest, rev)
	if err != nil {
		return wireError(t.ctx, err)
	}
	t.past[rev] = v
	return nil
}

func (s *Server) putOp(ctx context.Context, r *pb.PutRequest) (raftstore.Op, error) {
	switch {
	case r == nil || len(r.Key) == 0:
		return raftstore.Op{}, rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return raftstore.Op{}, rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return raftstore.Op{}, rpctypes.ErrGRPCLeaseProvided
	}
	if r.Lease != 0 {
		if err := s.ownLease(ctx, r.Lease); err != nil {
			return raftstore.Op{}, err
		}
	}
	return raftstore.Op{
		Type: raftstore.OpPut, Key: s.space.key(r.Key), Value: r.Value, Lease: raftstore.LeaseID(r.Lease),
		PrevKV: r.PrevKv, IgnoreValue: r.IgnoreValue, IgnoreLease: r.IgnoreLease,
	}, nil
}

func (s *Server) deleteOp(r *pb.DeleteRangeRequest) (raftstore.Op, error) {
	if r == nil || len(r.Key) == 0 {
		return raftstore.Op{}, rpctypes.ErrGRPCEmptyKey
	}
	op := raftstore.Op{Type: raftstore.OpDelete, PrevKV: r.PrevKv}
	op.Key, op.RangeEnd = s.space.span(r.Key, r.RangeEnd)
	return op, nil
}

// result is the answer to r.
func (t *translation) result(r *pb.TxnRequest, res *raftstore.TxnResult) *pb.TxnResponse {
	out := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: res.Revision}, Succeeded: res.Succeeded}
	ops := r.Failure
	if res.Succeeded {
		ops = r.Success
	}
	if len(ops) == 0 {
		return out
	}
	out.Responses = make([]*pb.ResponseOp, len(ops))
	for i, op := range ops {
		out.Responses[i] = t.opResult(op, &res.Results[i], res.Revision)
	}
	return out
}

func (t *translation) opResult(op *pb.RequestOp, res *raftstore.OpResult, rev int64) *pb.ResponseOp {
	h := &pb.ResponseHeader{Revision: rev}
	switch o := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: t.rangeResult(o.RequestRange, res, rev)}}
	case *pb.RequestOp_RequestPut:
		p := &pb.PutResponse{Header: h, PrevKv: t.previous(res)}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: p}}
	case *pb.RequestOp_RequestDeleteRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: t.deleted(res, h)}}
	case *pb.RequestOp_RequestTxn:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: t.result(o.RequestTxn, res.Txn)}}
	}
	return nil // not reached: ops refused it
}

func (t *translation) rangeResult(r *pb.RangeRequest, res *raftstore.OpResult, rev int64) *pb.RangeResponse {
	var out *pb.RangeResponse
	if r.Revision > 0 {
		out = t.scan(t.past[r.Revision], r)
	} else {
		out = t.arrange(r, res.KVs, res.Count)
	}
	out.Header.Revision = rev
	return out
}
