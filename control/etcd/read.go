package etcd

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// checkRange validates a read by etcd's rules.
func checkRange(r *pb.RangeRequest) error {
	if r == nil || len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	_, order := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]
	_, target := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]
	if !order || !target {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

// plain reports whether r wants the keys of a range in key order without filters: then the limit applies while reading.
func plain(r *pb.RangeRequest) bool {
	ordered := r.SortTarget == pb.RangeRequest_KEY && r.SortOrder != pb.RangeRequest_DESCEND
	return ordered && !bounds(r)
}

func bounds(r *pb.RangeRequest) bool {
	return r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
}

// scans are buffers for what a read finds.
var scans = sync.Pool{New: func() any { return new([]*raftstore.KeyValue) }}

// scan reads a range of v. The header of the answer is empty.
func (s *Server) scan(v *raftstore.View, r *pb.RangeRequest) *pb.RangeResponse {
	buf := scans.Get().(*[]*raftstore.KeyValue)
	kvs, count, cut := (*buf)[:0], int64(0), plain(r) && r.Limit > 0
	start, end := s.space.span(r.Key, r.RangeEnd)
	v.Ascend(start, end, func(kv *raftstore.KeyValue) bool {
		count++
		if !r.CountOnly && !(cut && count > r.Limit) {
			kvs = append(kvs, kv)
		}
		return true
	})
	res := s.arrange(r, kvs, count)
	if cap(kvs) <= 1<<16 {
		clear(kvs)
		*buf = kvs[:0]
		scans.Put(buf)
	}
	return res
}

// arrange returns the answer to r from kvs, which are in key order; count is the number of keys found. It reorders kvs.
func (s *Server) arrange(r *pb.RangeRequest, kvs []*raftstore.KeyValue, count int64) *pb.RangeResponse {
	res := &pb.RangeResponse{Header: new(pb.ResponseHeader), Count: count}
	if r.CountOnly {
		return res
	}
	found := count
	if bounds(r) {
		kvs = slices.DeleteFunc(kvs, func(kv *raftstore.KeyValue) bool { return outside(r, kv) })
		found = int64(len(kvs))
	}
	if order := ordering(r); order != nil {
		slices.SortStableFunc(kvs, order)
	}
	if r.Limit > 0 && found > r.Limit {
		kvs, res.More = kvs[:r.Limit], true
	}
	res.Kvs = s.space.list(kvs, r.KeysOnly)
	return res
}

func outside(r *pb.RangeRequest, kv *raftstore.KeyValue) bool {
	return r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision ||
		r.MinModRevision != 0 && kv.ModRevision < r.MinModRevision ||
		r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision ||
		r.MinCreateRevision != 0 && kv.CreateRevision < r.MinCreateRevision
}

type order func(a, b *raftstore.KeyValue) int

var orders = map[pb.RangeRequest_SortTarget]order{
	pb.RangeRequest_KEY:     func(a, b *raftstore.KeyValue) int { return strings.Compare(a.Key, b.Key) },
	pb.RangeRequest_VERSION: func(a, b *raftstore.KeyValue) int { return cmp.Compare(a.Version, b.Version) },
	pb.RangeRequest_CREATE:  func(a, b *raftstore.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) },
	pb.RangeRequest_MOD:     func(a, b *raftstore.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) },
	pb.RangeRequest_VALUE:   func(a, b *raftstore.KeyValue) int { return bytes.Compare(a.Value, b.Value) },
}

// ordering returns the comparison by which the keys of r are sorted; nil if key order is the requested order. Without an
// order, any target but the key means ascending, as in etcd.
func ordering(r *pb.RangeRequest) order {
	by := orders[r.SortTarget]
	switch {
	case r.SortOrder == pb.RangeRequest_DESCEND:
		return func(a, b *raftstore.KeyValue) int { return by(b, a) }
	case r.SortTarget == pb.RangeRequest_KEY:
		return nil
	}
	return by
}
