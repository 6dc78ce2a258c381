package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func errUnknown(what string, n int32) error {
	return status.Errorf(codes.InvalidArgument, "etcd API: compare has unknown %s %d", what, n)
}

// compactKey holds the revision up to which etcd's clients have compacted. It is outside the clients' prefix, so that they
// cannot reach it.
func (s keyspace) compactKey() string { return strings.TrimSuffix(s.prefix, "/") + ".compact" }

// compacted returns the oldest revision that clients may read: the newer one of their own compaction in v and the oldest
// revision in the store.
func (s *Server) compacted(v *raftstore.View) (own, physical int64) {
	if physical = s.store.CompactRevision(); physical <= 1 {
		physical = 0 // nothing is older than revision 1
	}
	return parseRevision(v.Get(s.space.compactKey())), physical
}

// parseRevision parses the value that Compact wrote, and caches the result for each version of the key.
func parseRevision(kv *raftstore.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	if n, ok := kv.Memo().(int64); ok {
		return n
	}
	n, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil {
		n = 0
	}
	kv.SetMemo(n)
	return n
}

// at returns the state at revision rev, or the newest if rev is not positive.
func (s *Server) at(newest *raftstore.View, rev int64) (*raftstore.View, error) {
	switch {
	case rev <= 0 || rev == newest.Revision():
		return newest, nil
	case rev > newest.Revision():
		return nil, raftstore.ErrFutureRevision
	}
	if own, _ := s.compacted(newest); rev < own {
		return nil, raftstore.ErrCompacted
	}
	return s.store.ViewAt(rev)
}

// Compact implements etcdserverpb.KVServer: it moves the revision below which this API answers ErrCompacted. It does not
// touch the store's history, which other users need too.
func (s *kvService) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	for {
		v, err := s.newest(ctx, false)
		if err != nil {
			return nil, err
		}
		if r.Revision > v.Revision() {
			return nil, wireError(ctx, raftstore.ErrFutureRevision)
		}
		if own, physical := s.compacted(v); r.Revision <= max(own, physical) {
			return nil, wireError(ctx, fmt.Errorf("%w: at %d", raftstore.ErrCompacted, max(own, physical)))
		}
		key, was := s.space.compactKey(), int64(0)
		if kv := v.Get(key); kv != nil {
			was = kv.ModRevision
		}
		res, err := s.write(ctx, raftstore.Txn{
			Compares: []raftstore.Compare{raftstore.ModRevisionIs(key, was)},
			Success:  []raftstore.Op{{Type: raftstore.OpPut, Key: key, Value: strconv.AppendInt(nil, r.Revision, 10)}},
		})
		if err != nil {
			return nil, err
		}
		if res.Succeeded {
			return &pb.CompactionResponse{Header: s.header(new(pb.ResponseHeader), res.Revision)}, nil
		}
	}
}
