package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/control/etcd"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore/member"
	"github.com/balsahq/balsa/raftstore/peer"
)

// maxStreams bounds the requests under way on one gRPC connection. Those over it
// wait at the client, so it is more than etcd's clients commonly have.
const maxStreams = 1000

// services is what the port serves over gRPC: the cluster's own service, and
// etcd's API.
type services struct {
	grpc    *grpc.Server
	http    http.Handler
	cluster *cluster.Service
	etcd    *etcd.Server
}

func (s *server) newServices() error {
	gossip, me := s.gossip.Load(), s.member.Get()
	key, err := archive.OpenKeyFile(join.RecoveryKeyFile(s.cfg.ServerDir()), true)
	if err != nil {
		return fmt.Errorf("the recovery key: %w", err)
	}
	v := &services{}
	v.cluster, err = cluster.New(cluster.Config{
		Store: s.store, PKI: s.pki, Members: gossip, Nodes: s.liveness, Name: s.cfg.NodeName, Version: s.cfg.Version,
		Address: s.address, APINames: s.apiNames(), Virtual: s.virtualAddresses, Settings: me.Settings, RecoveryKey: key,
		PodsHold: s.podsHold(), KeysChanged: s.podKeys.Changed, StaleSecrets: s.staleSecrets, DialServer: s.dialer.Dial,
		SpoolDir: filepath.Join(s.cfg.ServerDir(), "spool"), Left: s.leave, Logger: s.log,
	})
	if err != nil {
		return err
	}
	v.etcd, err = etcd.New(etcd.Config{
		Store: s.store, Authorize: etcd.Organizations(pki.MastersOrganization, pki.EtcdClientsOrganization), Members: s.etcdMembers,
		TempDir: filepath.Join(s.cfg.ServerDir(), "spool"), Logger: s.log,
	})
	if err != nil {
		return err
	}
	v.grpc = grpc.NewServer(append(append(etcd.ServerOptions(0), containCalls()...), grpc.Creds(peer.ServerCredentials()),
		grpc.InTapHandle(containTap(v.cluster.Tap)), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(16<<10),
		// Agents find a frozen server by asking every ten seconds.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 15 * time.Second, MaxConnectionIdle: 10 * time.Minute}))...)
	v.http = v.cluster.TapHTTP(v.grpc)
	v.cluster.Register(v.grpc)
	v.etcd.Register(v.grpc)
	s.services = v
	return nil
}

// ServeHTTP is for gRPC clients that also offer http/1.1.
func (v *services) ServeHTTP(w http.ResponseWriter, r *http.Request) { v.http.ServeHTTP(w, r) }

func (s *server) startServices() error {
	v := s.services
	s.parts.Start("cluster service", v.cluster.Run)
	s.parts.Start("etcd API", v.etcd.Run)
	s.parts.Start("gRPC", func(ctx context.Context) error {
		ended := make(chan error, 1)
		go func() { ended <- fault.Contain("gRPC", func() error { return v.grpc.Serve(s.port.GRPC()) }) }()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
		}
		// Streams of watches never end by themselves.
		cut := time.AfterFunc(farewell, v.grpc.Stop)
		defer cut.Stop()
		v.etcd.Close()
		v.grpc.GracefulStop()
		return <-ended
	})
	s.parts.Keep("snapshots", func(ctx context.Context) error {
		return runSnapshotSchedule(ctx, s.cfg.Snapshots, s.cfg.SnapshotDir(), v.cluster, s.store, s.log)
	})
	return nil
}

// leave ends this process: the server is out of the cluster at its own wish.
func (s *server) leave() {
	if err := s.gossip.Load().Depart(farewell); err != nil {
		s.log.Warn("the others were not told", "err", err)
	}
	select {
	case s.over <- errLeft:
	default:
	}
}

var _ cluster.Membership = (*member.Gossip)(nil)

// invite says, on the terminal of whoever began the cluster, how others join. A
// service manager keeps what it is told, and a token is a secret.
func (s *server) invite(ctx context.Context) {
	if info, err := os.Stdout.Stat(); !s.begins || err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	for _, role := range []struct {
		server bool
		what   string
	}{{true, "server"}, {false, "agent"}} {
		t, _, err := s.services.cluster.NewToken(ctx, cluster.TokenOptions{Server: role.server, Description: "printed at the first start"})
		if err != nil {
			s.log.Warn("no join token could be made; `balsa token create` makes one", "err", err)
			return
		}
		fmt.Printf("To add %s (within 24 hours), run there:\n  balsa %s --join %s --token %s\n", map[bool]string{true: "a server", false: "an agent"}[role.server], role.what, s.advertise, t.Text())
	}
}
