package peer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/peer/peerpb"
)

const (
	maxMessage = 16 << 20 // bytes of a message between peers
	// maxForwards is how many batches of one peer are accepted at once. The peer itself sends fewer (sentForwards), but a batch that it
	// gave up counts until the handler has noticed.
	maxForwards = 24
	maxStreams  = 256 // requests under way on one connection
)

// service answers peers' requests with its present handler.
type service struct {
	peerpb.UnimplementedPeersServer
	handler atomic.Pointer[raftstore.Handler]

	mu       sync.Mutex
	forwards map[string]int // under way, by peer
}

func newService() *service { return &service{forwards: map[string]int{}} }

func (s *service) handle(h raftstore.Handler) {
	if h == nil {
		s.handler.Store(nil)
		return
	}
	s.handler.Store(&h)
}

// newServer returns the gRPC server for s.
func newServer(s *service) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(established{}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(16<<10),
		grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(8<<20),
		grpc.ReadBufferSize(64<<10), grpc.WriteBufferSize(64<<10),
		grpc.ConnectionTimeout(helloTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Second, Timeout: 2 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.InTapHandle(s.tap),
	)
	peerpb.RegisterPeersServer(server, s)
	return server
}

// tap refuses a batch over a peer's limit before the batch is read.
func (s *service) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != peerpb.Peers_Forward_FullMethodName {
		return ctx, nil
	}
	id, err := caller(ctx)
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forwards[id] >= maxForwards {
		return nil, status.Errorf(codes.ResourceExhausted, "%d batches are under way, no more are taken", maxForwards)
	}
	s.forwards[id]++
	done := sync.OnceFunc(func() { s.finished(id) })
	context.AfterFunc(ctx, done) // the context of a stream ends with it
	return context.WithValue(ctx, shareKey{}, done), nil
}

// shareKey is the key of a func() in the context of a Forward, which ends the batch's count. Forward calls it before the answer is sent,
// so that a peer that has the answer may send the next batch.
type shareKey struct{}

func (s *service) finished(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forwards[id]--; s.forwards[id] == 0 {
		delete(s.forwards, id)
	}
}

// caller returns the ID of the server that sent a request.
func caller(ctx context.Context) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", ErrIdentity
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return "", ErrIdentity
	}
	id, _, err := remote(info.State)
	return id, err
}

// errNoHandler is the answer of a server whose store is not open.
var errNoHandler = status.Error(codes.Unavailable, "the store is not open")

func (s *service) current() (raftstore.Handler, error) {
	h := s.handler.Load()
	if h == nil {
		return nil, errNoHandler
	}
	return *h, nil
}

// Forward implements peerpb.PeersServer.
func (s *service) Forward(ctx context.Context, req *peerpb.ForwardRequest) (*peerpb.ForwardReply, error) {
	if done, ok := ctx.Value(shareKey{}).(func()); ok {
		defer done()
	}
	h, err := s.current()
	if err != nil {
		return nil, err
	}
	err = h.Forwarded(ctx, raftstore.Batch{Entry: req.GetEntry(), Oldest: req.GetOldest()})
	return &peerpb.ForwardReply{Error: encodeError(err)}, nil
}

// ReadIndex implements peerpb.PeersServer.
func (s *service) ReadIndex(ctx context.Context, _ *peerpb.ReadIndexRequest) (*peerpb.ReadIndexReply, error) {
	h, err := s.current()
	if err != nil {
		return nil, err
	}
	index, err := h.ServeReadIndex(ctx)
	return &peerpb.ReadIndexReply{Error: encodeError(err), Index: index}, nil
}

// KeepAlive implements peerpb.PeersServer.
func (s *service) KeepAlive(ctx context.Context, req *peerpb.LeaseRequest) (*peerpb.LeaseReply, error) {
	h, err := s.current()
	if err != nil {
		return nil, err
	}
	d, err := h.ServeKeepAlive(ctx, raftstore.LeaseID(req.GetId()))
	return &peerpb.LeaseReply{Error: encodeError(err), Time: int64(d)}, nil
}

// LeaseRemaining implements peerpb.PeersServer.
func (s *service) LeaseRemaining(ctx context.Context, req *peerpb.LeaseRequest) (*peerpb.LeaseReply, error) {
	h, err := s.current()
	if err != nil {
		return nil, err
	}
	d, err := h.ServeLeaseRemaining(ctx, raftstore.LeaseID(req.GetId()))
	return &peerpb.LeaseReply{Error: encodeError(err), Time: int64(d)}, nil
}

// Ping implements peerpb.PeersServer.
func (s *service) Ping(context.Context, *peerpb.PingRequest) (*peerpb.PingReply, error) {
	return &peerpb.PingReply{}, nil
}

// wireErrors are the errors that keep their identity across the wire. An error that wraps several is sent as the first of them.
var wireErrors = []struct {
	code peerpb.Code
	err  error
}{
	{peerpb.Code_NOT_LEADER, raftstore.ErrNotLeader},
	{peerpb.Code_NO_LEADER, raftstore.ErrNoLeader},
	{peerpb.Code_DISK_FULL, raftstore.ErrDiskFull},
	{peerpb.Code_DISK_READ_ONLY, raftstore.ErrDiskReadOnly},
	{peerpb.Code_DISK, raftstore.ErrDisk},
	{peerpb.Code_CLOSED, raftstore.ErrClosed},
	{peerpb.Code_LEASE_NOT_FOUND, raftstore.ErrLeaseNotFound},
	{peerpb.Code_LEASE_EXISTS, raftstore.ErrLeaseExists},
	{peerpb.Code_TOO_LARGE, raftstore.ErrTooLarge},
	{peerpb.Code_INVALID, raftstore.ErrInvalid},
	{peerpb.Code_UNREACHABLE, raftstore.ErrUnreachable},
	{peerpb.Code_COMPACTED, raftstore.ErrCompacted},
	{peerpb.Code_FUTURE_REVISION, raftstore.ErrFutureRevision},
	{peerpb.Code_DUPLICATE_KEY, raftstore.ErrDuplicateKey},
	{peerpb.Code_KEY_NOT_FOUND, raftstore.ErrKeyNotFound},
}

func encodeError(err error) *peerpb.Error {
	if err == nil {
		return nil
	}
	text := err.Error()
	out := &peerpb.Error{Code: peerpb.Code_OTHER, Text: text[:min(len(text), maxFailure)]}
	for _, w := range wireErrors {
		if errors.Is(err, w.err) {
			out.Code = w.code
			break
		}
	}
	return out
}

// decodeError returns the error that a peer answered with: its text, wrapping one of raftstore's errors.
func decodeError(e *peerpb.Error) error {
	if e == nil {
		return nil
	}
	out := &remoteError{text: e.GetText()}
	for _, w := range wireErrors {
		if e.GetCode() == w.code {
			out.is = w.err
		}
	}
	return out
}

// remoteError is an error of a peer.
type remoteError struct {
	text string
	is   error // nil: not an error that this server knows
}

// Error implements error.
func (e *remoteError) Error() string { return e.text }

// Unwrap lets errors.Is find the error of raftstore.
func (e *remoteError) Unwrap() error { return e.is }
