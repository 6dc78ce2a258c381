package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
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

// server is one control-plane peer of this process.
type server struct {
	cfg       *config.Server
	log       *slog.Logger
	progress  *process.Progress
	parts     *lifecycle.Group
	nodeIP    netip.Addr
	advertise netip.Addr
	begins    bool // this start made the cluster

	member   *membership.Record
	clock    *wallclock.Watch
	podKeys  *podKeys
	pki      *pki.Authority
	clients  *pki.Trust // whose clients the API believes beside the cluster's; nil: nobody's
	network  *peer.Network
	port     *peer.Port
	dialer   *cluster.Dialer
	store    *raftstore.Store
	gossip   atomic.Pointer[member.Gossip]
	services *services
	tunnel   *tunnel.Tunnel
	reports  *resourcemetrics.Reports // what nodes and pods use
	liveness *liveness
	recorded *notifier // of changes of the servers' records
	api      *control.Server

	kubeconfigMu sync.Mutex // held while the file is written

	over chan error // why this run has to end although nothing failed
}

// Run runs a server until ctx ends, a part fails, or the server has left its cluster. cfg is validated.
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
	log := process.NewLogger(cfg.Level())
	process.Prepare(log)
	process.SetNice(process.ServerNice, log)
	process.SetSessionNice(process.ServerNice, log)
	progress := process.NewProgress(milestones...)
	for {
		s := &server{cfg: cfg, log: log, progress: progress, parts: lifecycle.New(log), recorded: newNotifier(), reports: resourcemetrics.NewReports(), podKeys: &podKeys{notifier: newNotifier()}, over: make(chan error, 1)}
		s.liveness = newLiveness(s)
		err := s.run(ctx)
		switch {
		case errors.Is(err, errLeft):
			log.Info("this server has left the cluster and stops; its data is in " + cfg.ServerDir())
			return nil
		case !errors.Is(err, errStale):
			return err
		}
		log.Warn("coming back as a server without data", "reason", err)
		if err := s.resync(ctx); err != nil {
			return err
		}
	}
}

// Preflight finds what would fail later on this machine, with worse words.
func Preflight(cfg *config.Server) error {
	check := process.Preflight{Node: !cfg.DisableAgent, Ports: []process.Port{{Address: cfg.BindAddress, Number: cfg.Port, Flag: "port"}}}
	if !cfg.DisableAgent {
		check.Ports = append(check.Ports, process.Port{Number: cfg.KubeletPort, Flag: "kubelet-port"})
	}
	return check.Check()
}

// run is one life of the server, until ctx ends or it has to begin anew.
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
	return s.parts.Wait(ctx, s.over)
}

// start builds the parts in the order in which data flows. The container
// runtime comes first only because it takes longest.
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
	s.begins = len(s.member.Get().Servers) == 0
	for _, step := range []func() error{
		s.startCertificates, s.startPort, s.openStore, func() error { return s.startGossip(ctx) }, s.startStore, s.newServices, s.startMembers,
		s.takeNodes, s.startAPI, s.startServices, s.startLeader,
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

func (s *server) startCertificates() error {
	services, err := config.Prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return err
	}
	names, ips := s.subjects(s.advertise)
	s.pki, err = pki.Open(pki.Config{
		Dir: filepath.Join(s.cfg.ServerDir(), "tls"), Names: names, IPs: ips,
		ServiceIP: services[0].Addr().Next().AsSlice(), ClusterDomain: s.cfg.ClusterDomain, Encryption: newEncryption(&s.cfg.API), Logger: s.log,
	})
	if err != nil {
		return err
	}
	if err := encryptWith(&s.cfg.API, s.pki.EncryptionFile()); err != nil {
		return err
	}
	s.parts.Keep("certificates", s.pki.Run)
	s.clock = wallclock.New(s.log)
	s.clock.Notify(s.pki.Wake)
	s.parts.Keep("clock", s.clock.Run)
	return s.openClientCAs()
}

// startStore lets peers reach this server, and Raft reach them.
func (s *server) startStore() error {
	s.parts.Start("port", s.port.Run)
	s.parts.Start("peers", s.network.Run)
	s.parts.Start("store", s.store.Run)
	s.parts.Keep("retired CAs", s.followTrust)
	return nil
}

// subjects are the names and addresses the API's certificate must carry beside
// those that every cluster has.
func (s *server) subjects(advertise netip.Addr) (names []string, ips []net.IP) {
	names = []string{s.cfg.NodeName}
	ips = append([]net.IP{advertise.AsSlice(), s.nodeIP.AsSlice()}, nodesetup.IPs(&s.cfg.Node, s.nodeIP)...)
	for _, san := range s.cfg.TLSSANs {
		if ip := net.ParseIP(san); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, san)
		}
	}
	return names, ips
}

// apiNames are the names and addresses by which clients know this server's API
// beside its own name and its port's address, for the certificates of others.
func (s *server) apiNames() []string {
	names, ips := s.subjects(s.advertise)
	for _, ip := range ips {
		names = append(names, ip.String())
	}
	slices.Sort(names)
	return slices.Compact(names)
}
