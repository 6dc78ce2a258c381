package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/cmd/balsa/daemon/wallclock"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/resourcemetrics"
	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
	"github.com/balsahq/balsa/raftstore/peer"
)

// server is one run of a control-plane peer. A process has several after each other, when it joins its cluster again.
type server struct {
	cfg        *config.Server
	log        *slog.Logger
	debug      map[string]http.Handler // see process.DebugHandlers
	progress   *process.Progress
	parts      *lifecycle.Group
	nodeIP     netip.Addr
	advertise  netip.Addr
	newCluster bool // this start has created the cluster

	member         *membership.Record
	clock          *wallclock.Watch
	podKeys        *podKeys
	pki            *pki.Authority
	clients        *pki.Trust // authorities of --client-ca-file; nil without the flag
	network        *peer.Network
	port           *peer.Port
	dialer         *cluster.Dialer
	store          *raftstore.Store
	gossip         atomic.Pointer[member.Gossip]
	services       *services
	tunnel         *tunnel.Tunnel
	reports        *resourcemetrics.Reports // the resource usage of nodes and pods
	liveness       *liveness
	recordsChanged *notifier // of the servers' records
	api            *control.Server

	kubeconfigMu sync.Mutex // serializes writes of the file

	stopReason chan error // errStale or errLeft; capacity 1
}

// Run runs a server until ctx ends, a part fails, or the server has left its cluster. The caller has called cfg.Complete and
// cfg.Validate.
func Run(ctx context.Context, cfg *config.Server) error {
	if err := process.RequireRoot(); err != nil {
		return err
	}
	pid, err := process.Claim(cfg.PIDFile())
	if err != nil {
		return err
	}
	defer pid.Release()
	if err := Preflight(cfg); err != nil {
		return err
	}
	milestones := []string{process.MilestoneAPI, process.MilestoneLeader}
	if !cfg.DisableAgent {
		milestones = append(milestones, process.MilestoneRuntime, process.MilestoneNode)
	}
	levels := cfg.Levels()
	log := process.NewLogger(levels)
	debug := process.DebugHandlers(levels, log)
	process.Prepare(log)
	process.SetNice(process.ServerNice, log)
	process.SetSessionNice(process.ServerNice, log)
	progress := process.NewProgress(milestones...)
	for {
		s := &server{cfg: cfg, log: log, debug: debug, progress: progress, parts: lifecycle.New(log), recordsChanged: newNotifier(), reports: resourcemetrics.NewReports(), podKeys: &podKeys{notifier: newNotifier()}, stopReason: make(chan error, 1)}
		s.liveness = newLiveness(s)
		err := s.run(ctx)
		switch {
		case errors.Is(err, errLeft):
			log.Info("this server has left the cluster and stops; its data is in " + cfg.ServerDir())
			return nil
		case !errors.Is(err, errStale):
			return err
		}
		log.Warn("this server discards its data and joins the cluster again", "err", err)
		if err := s.rejoin(ctx); err != nil {
			return err
		}
	}
}

// Preflight reports what this machine lacks for a server of this configuration, before anything is started.
func Preflight(cfg *config.Server) error {
	check := process.Preflight{Node: !cfg.DisableAgent, Ports: []process.Port{{Address: cfg.BindAddress, Number: cfg.Port, Flag: "port"}}}
	if !cfg.DisableAgent {
		check.Ports = append(check.Ports, process.Port{Number: cfg.KubeletPort, Flag: "kubelet-port"})
	}
	return check.Check()
}

// run starts the parts and returns after all of them have stopped: when ctx ends, when a part fails, or for a stopReason.
func (s *server) run(ctx context.Context) (err error) {
	defer s.parts.Stop()
	if s.nodeIP, err = nodesetup.Address(&s.cfg.Node); err != nil {
		return err
	}
	s.advertise = s.nodeIP
	if s.cfg.AdvertiseAddress != "" {
		if s.advertise, err = netip.ParseAddr(s.cfg.AdvertiseAddress); err != nil {
			return err
		}
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	return s.parts.Wait(ctx, s.stopReason)
}

// start starts the parts in the order in which data flows. The container runtime comes
// first only because it takes longest.
func (s *server) start(ctx context.Context) error {
	process.StartHousekeeping(s.parts, s.cfg.ProfileAddress, s.progress.Done())
	var rt *nodesetup.Runtime
	var err error
	if !s.cfg.DisableAgent {
		if rt, err = nodesetup.StartRuntime(&s.cfg.Node, s.parts, s.log); err != nil {
			return err
		}
	}
	if s.member, err = openMembership(ctx, s.cfg, s.address(), s.log); err != nil {
		return err
	}
	s.newCluster = len(s.member.Get().Servers) == 0
	for _, step := range []func() error{
		s.startCertificates, s.startPort, s.openStore, func() error { return s.startGossip(ctx) }, s.startStore, s.newServices, s.startAutopilot,
		s.startTunnel, s.startAPI, s.startServices, s.startLeader,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if s.cfg.DisableAgent {
		return nil
	}
	return s.startNode(rt)
}

// startStore opens the port for peers and starts Raft.
func (s *server) startStore() error {
	s.parts.Start("port", s.port.Run)
	s.parts.Start("peers", s.network.Run)
	s.parts.Start("store", s.store.Run)
	s.parts.Keep("retired CAs", s.followTrust)
	return nil
}
