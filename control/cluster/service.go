package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/eventlog"
	"github.com/balsahq/balsa/control/cluster/joinlimit"
	"github.com/balsahq/balsa/fault"
)

// Service implements clusterpb.ClusterServer. Its methods are safe for concurrent use.
type Service struct {
	clusterpb.UnimplementedClusterServer
	cfg     Config
	events  *eventlog.Log
	failed  *joinlimit.Limiter
	streams streams
	servers *broadcast    // of the list of servers
	wake    chan struct{} // of one place: a record of a member or of the rotation has changed
	rotated int64         // revision of the rotation's record that this server has carried out; only followChanges uses it
	waited  string        // for what the rotation waits, as logged last; only followChanges uses it
	health  *health.Server
	saves   chan struct{} // a place for each snapshot being saved
	restore chan struct{} // and for the one being restored
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	cfg.PKI.Reserve(cfg.reserve())
	stream := make([]byte, 8)
	_, _ = rand.Read(stream) // never fails: crypto/rand aborts the program instead
	return &Service{
		cfg: cfg, events: eventlog.New(hex.EncodeToString(stream)),
		failed: joinlimit.New(cfg.Now), servers: newBroadcast(), wake: make(chan struct{}, 1), health: health.NewServer(), saves: make(chan struct{}, 2), restore: make(chan struct{}, 1),
	}, nil
}

// Register adds the service, health and reflection to a gRPC server.
func (s *Service) Register(server *grpc.Server) {
	clusterpb.RegisterClusterServer(server, s)
	healthpb.RegisterHealthServer(server, s.health)
	reflection.Register(server)
}

// Pin is the pin of the CA that signs now, as in tokens.
func (s *Service) Pin() string { return pki.Pin(s.cfg.PKI.CACertificate().Raw) }

// Run turns changes into events, keeps health true, and carries out rotations of keys, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	defer s.health.Shutdown()
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range []func(context.Context) error{s.followChanges, s.watchRecords} {
		group.Go(func() error { return fault.Keep(ctx, "control/cluster", part) })
	}
	return group.Wait()
}

func (s *Service) setHealth(serving bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		state = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", state)
	s.health.SetServingStatus(clusterpb.Cluster_ServiceDesc.ServiceName, state)
}
