package etcd

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/metadata"
)

// fuzzStream is a stream of requests without a network; answers are dropped.
type fuzzStream struct {
	ctx  context.Context
	reqs chan *pb.WatchRequest
}

func (s *fuzzStream) Send(r *pb.WatchResponse) error { _, err := r.Marshal(); return err }
func (s *fuzzStream) SetHeader(metadata.MD) error    { return nil }
func (s *fuzzStream) SendHeader(metadata.MD) error   { return nil }
func (s *fuzzStream) SetTrailer(metadata.MD)         {}
func (s *fuzzStream) Context() context.Context       { return s.ctx }
func (s *fuzzStream) SendMsg(any) error              { return nil }
func (s *fuzzStream) RecvMsg(any) error              { return nil }
func (s *fuzzStream) Recv() (*pb.WatchRequest, error) {
	if r, ok := <-s.reqs; ok {
		return r, nil
	}
	return nil, io.EOF
}

// FuzzRequests gives bytes to every call as its request: nothing may panic, and
// nothing outside the prefix may change.
func FuzzRequests(f *testing.F) {
	ctx := context.Background()
	store, err := raftstore.Open(raftstore.Config{InMemory: true})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Config{Store: store, Authorize: func(context.Context) error { return nil }, RequestTimeout: time.Second})
	if err != nil {
		f.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- s.Run(run) }()
	f.Cleanup(func() { stop(); <-ran; store.Close() })
	if _, err := store.Txn(ctx, raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: "/registry/x", Value: []byte("y")}}}); err != nil {
		f.Fatal(err)
	}
	kv, lease, m := &kvService{s}, &leaseService{s}, &maintenanceService{s}
	calls := []func([]byte){
		call(func(r *pb.RangeRequest) { kv.Range(ctx, r) }),
		call(func(r *pb.PutRequest) { kv.Put(ctx, r) }),
		call(func(r *pb.DeleteRangeRequest) { kv.DeleteRange(ctx, r) }),
		call(func(r *pb.TxnRequest) { kv.Txn(ctx, r) }),
		call(func(r *pb.CompactionRequest) { kv.Compact(ctx, r) }),
		call(func(r *pb.LeaseGrantRequest) { lease.LeaseGrant(ctx, r) }),
		call(func(r *pb.LeaseRevokeRequest) { lease.LeaseRevoke(ctx, r) }),
		call(func(r *pb.LeaseTimeToLiveRequest) { lease.LeaseTimeToLive(ctx, r) }),
		call(func(r *pb.HashKVRequest) { m.HashKV(ctx, r) }),
		call(func(r *pb.AlarmRequest) { m.Alarm(ctx, r) }),
		call(func(r *pb.WatchRequest) { watchOnce(s, r) }),
	}
	for _, r := range []interface{ Marshal() ([]byte, error) }{
		&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, Limit: -1, SortOrder: 2, SortTarget: 4},
		&pb.PutRequest{Key: []byte("a"), Value: []byte("v"), PrevKv: true},
		&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("a"), Target: 3, Result: 2}}, Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Failure: []*pb.RequestOp{{}}}}},
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("a"), Revision: 2}}},
		}},
		&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{StartRevision: 1, RangeEnd: []byte{0}}}},
	} {
		b, err := r.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		for i := range calls {
			f.Add(byte(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		calls[int(which)%len(calls)](data)
		if v := store.View().Get("/registry/x"); v == nil || v.ModRevision != 2 {
			t.Fatal("a key outside the prefix changed")
		}
	})
}

// call decodes bytes as a request of one kind and makes the call with it.
func call[T any, P interface {
	*T
	Unmarshal([]byte) error
}](fn func(P)) func([]byte) {
	return func(data []byte) {
		var r P = new(T)
		if r.Unmarshal(data) == nil {
			fn(r)
		}
	}
}

// watchOnce gives a stream one request, a progress request, and an end.
func watchOnce(s *Server, r *pb.WatchRequest) {
	st := &fuzzStream{ctx: context.Background(), reqs: make(chan *pb.WatchRequest, 2)}
	st.reqs <- r
	st.reqs <- &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{}}
	close(st.reqs)
	_ = (&watchService{s}).Watch(st)
}
