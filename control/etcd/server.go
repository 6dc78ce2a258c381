package etcd

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Server serves etcd's v3 API from a store.
type Server struct {
	cfg     Config
	store   *raftstore.Store
	space   keyspace
	cluster uint64 // as etcd's clients know the cluster and this server
	member  uint64
	index   *watchIndex
	hashing chan struct{} // holds one token: one hash or snapshot at a time
	size    sizeMemo

	mu      sync.Mutex // guards done against streams
	closed  bool
	done    chan struct{} // closed with the server
	streams sync.WaitGroup
	lonely  leaderless
}

// New returns a server. It starts nothing; watches deliver events while Run runs.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Server{
		cfg:     cfg,
		store:   cfg.Store,
		space:   newKeyspace(cfg.Prefix),
		cluster: shortID(cfg.Store.ClusterID()),
		member:  shortID(cfg.Store.ServerID()),
		index:   newWatchIndex(),
		hashing: make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	s.lonely.reset()
	return s, nil
}

// shortID returns the 64-bit identity for etcd's clients: the first 16 digits of Balsa's identity.
func shortID(id string) uint64 {
	b, err := hex.DecodeString(id[:min(16, len(id))])
	if err != nil || len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Register adds etcd's services to g, which should have been made with
// [ServerOptions].
func (s *Server) Register(g *grpc.Server) {
	pb.RegisterKVServer(g, &kvService{s})
	pb.RegisterWatchServer(g, &watchService{s})
	pb.RegisterLeaseServer(g, &leaseService{s})
	pb.RegisterMaintenanceServer(g, &maintenanceService{s})
	pb.RegisterClusterServer(g, &clusterService{s})
	pb.RegisterAuthServer(g, &authService{s})
}

// ServerOptions returns the options for a gRPC server that serves this API among others. maxRequestBytes is the
// field MaxRequestBytes of [Config]; 0 means the default.
func ServerOptions(maxRequestBytes int) []grpc.ServerOption {
	def(&maxRequestBytes, 3<<19)
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxRequestBytes + 512<<10),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.SharedWriteBuffer(true),
		grpc.WriteBufferSize(64 << 10),
		grpc.ReadBufferSize(64 << 10),
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(4 << 20),
	}
}

// Run delivers to the watches until ctx ends, then ends every stream and
// returns nil when all of them have ended.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { fault.KeepDo(ctx, "control/etcd", s.watchLeader) })
	err := fault.Keep(ctx, "control/etcd", s.dispatch)
	cancel()
	wg.Wait()
	s.Close()
	return err
}

// Close ends every watch stream and waits for them. Run calls it.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	s.streams.Wait()
}

// enter admits a stream. s.streams.Done pairs with it.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return rpctypes.ErrGRPCStopped
	}
	s.streams.Add(1)
	return nil
}

// authorize calls Config.Authorize, and refuses a caller that requires a leader if there is none.
func (s *Server) authorize(ctx context.Context) error {
	if err := s.cfg.Authorize(ctx); err != nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
		return status.Error(codes.PermissionDenied, err.Error())
	}
	if s.lonely.now() && demandsLeader(ctx) {
		return rpctypes.ErrGRPCNoLeader
	}
	return nil
}

// demandsLeader reports whether the client requires a leader, as with etcd's WithRequireLeader.
func demandsLeader(ctx context.Context) bool {
	v := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey)
	return len(v) > 0 && v[0] == rpctypes.MetadataHasLeader
}

// bounded adds the deadline RequestTimeout to a request.
func (s *Server) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= s.cfg.RequestTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.cfg.RequestTimeout)
}

// header fills in the header of an answer.
func (s *Server) header(h *pb.ResponseHeader, revision int64) *pb.ResponseHeader {
	_, term := s.store.Leader()
	h.ClusterId, h.MemberId, h.Revision, h.RaftTerm = s.cluster, s.member, revision, term
	return h
}

// Organizations returns an Authorize that admits callers whose verified client
// certificate names one of orgs as an organization.
func Organizations(orgs ...string) func(context.Context) error {
	want := strings.Join(orgs, " or ")
	return func(ctx context.Context) error {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return status.Error(codes.Unauthenticated, "etcd API: the caller is unknown")
		}
		info, ok := p.AuthInfo.(credentials.TLSInfo)
		if !ok || len(info.State.VerifiedChains) == 0 {
			return status.Error(codes.Unauthenticated,
				"etcd API: a client certificate is needed (etcdctl --cert, --key), signed by the cluster's CA, of the organization "+want)
		}
		subject := info.State.VerifiedChains[0][0].Subject
		for _, o := range subject.Organization {
			if slices.Contains(orgs, o) {
				return nil
			}
		}
		return status.Error(codes.PermissionDenied,
			fmt.Sprintf("etcd API: the client certificate of %q is of the organizations %q, %s is needed", subject.CommonName, subject.Organization, want))
	}
}

// ended returns the reason why a stream's context ended: the server stops, or the client has ended it.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return rpctypes.ErrGRPCWatchCanceled
	}
	return err
}
