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

// maxStreams bounds the concurrent requests of one gRPC connection. Further requests
// wait at the client, so the bound is higher than what etcd's clients commonly use.
const maxStreams = 1000

// services are the gRPC services of the port: the cluster's own and etcd's API.
type services struct {
	grpc    *grpc.Server
	http    http.Handler
	cluster *cluster.Service
	etcd    *etcd.Server
}

// newServices creates the services. They start after the API, which the cluster's service uses.
func (s *server) newServices() error {
	gossip, me := s.gossip.Load(), s.member.Get()
	key, err := archive.OpenKeyFile(join.RecoveryKeyFile(s.cfg.ServerDir()), true)
	if err != nil {
		return fmt.Errorf("cannot open the recovery key: %w", err)
	}
	v := &services{}
	v.cluster, err = cluster.New(cluster.Config{
		Store: s.store, PKI: s.pki, Members: gossip, Nodes: s.liveness, Name: s.cfg.NodeName, Version: s.cfg.Version,
		Address: s.address, APINames: s.apiNames(), Virtual: s.virtualAddresses, Settings: me.Settings, RecoveryKey: key,
		PodsHold: s.podsHold(), KeysChanged: s.podKeys.Changed, StaleSecrets: s.staleSecrets, DialServer: s.dialer.Dial,
		SpoolDir: filepath.Join(s.cfg.ServerDir(), "spool"), Left: s.stopAfterLeaving, Logger: s.log,
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
		// Agents notice a server that hangs by a ping every ten seconds.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 15 * time.Second, MaxConnectionIdle: 10 * time.Minute}))...)
	v.http = v.cluster.TapHTTP(v.grpc)
	v.cluster.Register(v.grpc)
	v.etcd.Register(v.grpc)
	s.services = v
	return nil
}

// ServeHTTP serves gRPC clients whose handshake also offers http/1.1: the port hands them to net/http.
func (v *services) ServeHTTP(w http.ResponseWriter, r *http.Request) { v.http.ServeHTTP(w, r) }

// startServices serves gRPC, and saves snapshots on schedule.
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
		// GracefulStop waits for streams, and watches do not end by themselves.
		cut := time.AfterFunc(leaveTimeout, v.grpc.Stop)
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

// stopAfterLeaving ends this process after the cluster has removed this server at its own request.
func (s *server) stopAfterLeaving() {
	if err := s.gossip.Load().Depart(leaveTimeout); err != nil {
		s.log.Warn("cannot tell the other servers that this one has left; they notice its silence", "err", err)
	}
	select {
	case s.stopReason <- errLeft:
	default:
	}
}

var _ cluster.Membership = (*member.Gossip)(nil)

// printJoinCommands prints the commands with which other machines join, once, when this
// start has created the cluster and standard output is a terminal. It prints nothing
// under a service manager, whose log would keep the tokens, which are secrets.
func (s *server) printJoinCommands(ctx context.Context) {
	if info, err := os.Stdout.Stat(); !s.newCluster || err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	for _, role := range []struct {
		server bool
		name   string
	}{{true, "server"}, {false, "agent"}} {
		t, _, err := s.services.cluster.NewToken(ctx, cluster.TokenOptions{Server: role.server, Description: "printed at the first start"})
		if err != nil {
			s.log.Warn("cannot create a join token; `balsa token create` creates one later", "err", err)
			return
		}
		fmt.Printf("To add %s (within 24 hours), run there:\n  balsa %s --join %s --token %s\n", map[bool]string{true: "a server", false: "an agent"}[role.server], role.name, s.advertise, t.Text())
	}
}
