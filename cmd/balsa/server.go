package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/cmd/balsa/repeats"
	"github.com/balsahq/balsa/cmd/balsa/wallclock"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/leader"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
	"github.com/balsahq/balsa/raftstore/peer"
)

// leadership is the name of the one leadership under which controllers and
// scheduler run; leadershipTTL is how long it survives its holder's silence.
const (
	leadership    = "controllers"
	leadershipTTL = 5 * time.Second
)

func newServerCommand() *cobra.Command {
	cfg, file := defaultConfig(), ""
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server in the foreground: the control plane, and pods unless --disable-agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.prepare(cmd, file); err != nil {
				return err
			}
			return runServer(cmd.Context(), &cfg)
		},
	}
	cfg.bindPaths(cmd.Flags())
	cfg.bindNode(cmd.Flags())
	cfg.bindServer(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", file, "YAML file whose keys are the names of these flags")
	return cmd
}

// newLogger writes to standard error; libraries that log through klog are
// heard from warnings on, unless the level is debug.
func newLogger(cfg *config) *slog.Logger {
	level, err := cfg.level()
	if err != nil {
		level = slog.LevelInfo
	}
	log := slog.New(repeats.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	libraries := max(level, slog.LevelWarn)
	if level == slog.LevelDebug {
		libraries = level
	}
	klog.SetSlogLogger(slog.New(partings{repeats.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: libraries}))}))
	return log
}

// partings leaves out what client-go and apiserver call errors when a term ends
// or a server stops: requests under way are given up then, on purpose.
type partings struct{ slog.Handler }

// Handle implements slog.Handler.
func (p partings) Handle(ctx context.Context, r slog.Record) error {
	given := strings.HasPrefix(r.Message, "Unable to write event")
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			text := a.Value.String()
			given = given || strings.Contains(text, "post-timeout activity") || strings.HasSuffix(text, context.Canceled.Error())
		}
		return !given
	})
	if given {
		return nil
	}
	return p.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (p partings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return partings{p.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (p partings) WithGroup(name string) slog.Handler { return partings{p.Handler.WithGroup(name)} }

// server is one control-plane peer of this process.
type server struct {
	cfg       *config
	log       *slog.Logger
	progress  *progress
	parts     *parts
	nodeIP    netip.Addr
	advertise netip.Addr
	begins    bool // this start made the cluster

	member   *membership
	clock    *wallclock.Watch
	pki      *pki.Authority
	clients  *pki.Trust // whose clients the API believes beside the cluster's; nil: nobody's
	network  *peer.Network
	port     *peer.Port
	dialer   *cluster.Dialer
	store    *raftstore.Store
	gossip   atomic.Pointer[member.Gossip]
	services *services
	tunnel   *tunnel.Tunnel
	liveness *liveness
	recorded *notifier // of changes of the servers' records
	api      *control.Server

	kubeconfig sync.Mutex // held while the file is written

	over chan error // why this run has to end although nothing failed
}

func runServer(ctx context.Context, cfg *config) error {
	pid, err := claimRunDir(cfg)
	if err != nil {
		return err
	}
	defer pid.release()
	if err := thisHost().preflight(cfg, !cfg.DisableAgent); err != nil {
		return err
	}
	milestones := []string{milestoneAPI, milestoneLeader}
	if !cfg.DisableAgent {
		milestones = append(milestones, milestoneRuntime, milestoneNode)
	}
	log := newLogger(cfg)
	forbidCore(log)
	containPanics(log)
	setNice(serverNice, log)
	setSessionNice(serverNice, log)
	progress := newProgress(milestones...)
	for {
		s := &server{cfg: cfg, log: log, progress: progress, parts: newParts(log), recorded: newNotifier(), over: make(chan error, 1)}
		s.liveness = newLiveness(s)
		err := s.run(ctx)
		switch {
		case errors.Is(err, errLeft):
			log.Info("this server has left the cluster and stops; its data is in " + cfg.serverDir())
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

// run is one life of the server, until ctx ends or it has to begin anew.
func (s *server) run(ctx context.Context) (err error) {
	defer s.parts.stop()
	if s.nodeIP, err = nodeAddress(s.cfg); err != nil {
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
	return s.parts.wait(ctx, s.over)
}

func claimRunDir(cfg *config) (*pidFile, error) {
	if os.Geteuid() != 0 {
		return nil, thisHost().preflight(cfg, false)
	}
	return claim(cfg.pidPath())
}

// start builds the parts in the order in which data flows. The container
// runtime comes first only because it takes longest.
func (s *server) start(ctx context.Context) error {
	s.parts.startHousekeeping(s.cfg, s.progress.done)
	var rt *nodeRuntime
	var err error
	if !s.cfg.DisableAgent {
		if rt, err = startRuntime(s.cfg, s.parts, s.log); err != nil {
			return err
		}
	}
	if s.member, err = openMembership(ctx, s.cfg, s.address(), s.log); err != nil {
		return err
	}
	s.begins = len(s.member.get().Servers) == 0
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
	services, err := prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return err
	}
	names, ips := s.subjects(s.advertise)
	s.pki, err = pki.Open(pki.Config{
		Dir: filepath.Join(s.cfg.serverDir(), "tls"), Names: names, IPs: ips,
		ServiceIP: services[0].Addr().Next().AsSlice(), ClusterDomain: s.cfg.ClusterDomain, Encryption: s.cfg.API.newEncryption(), Logger: s.log,
	})
	if err != nil {
		return err
	}
	if err := s.cfg.API.encryptWith(s.pki.EncryptionFile()); err != nil {
		return err
	}
	s.parts.keep("certificates", s.pki.Run)
	s.clock = wallclock.New(s.log)
	s.clock.Notify(s.pki.Wake)
	s.parts.keep("clock", s.clock.Run)
	return s.openClientCAs()
}

// startStore lets peers reach this server, and Raft reach them.
func (s *server) startStore() error {
	s.parts.start("port", s.port.Run)
	s.parts.start("peers", s.network.Run)
	s.parts.start("store", s.store.Run)
	return nil
}

func (s *server) startAPI() error {
	services, err := prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return err
	}
	services = append(services, netip.Prefix{}) // of the other family; commonly none
	dns, err := netip.ParseAddr(s.cfg.ClusterDNS)
	if err != nil {
		return err
	}
	patience := s.cfg.UnreachableTolerationSeconds
	s.api, err = control.New(control.Config{
		Store: s.store, PKI: s.pki, Secure: s.port.REST(), GRPC: s.services, Tunnel: s.tunnel, AdvertiseAddress: s.advertise, AdvertisePort: s.cfg.Port,
		ServiceCIDR: services[0], SecondServiceCIDR: services[1], ClusterDomain: s.cfg.ClusterDomain, ClusterDNS: dns, IngressClass: s.cfg.Ingress.class(), TolerationSeconds: &patience, Logger: s.log,
		Authentication: s.cfg.API.Authentication, Authorization: s.cfg.API.Authorization, Audit: s.cfg.API.Audit, Encryption: s.cfg.API.Encryption,
		ClientCAs: s.clients, RefuseClient: s.refuse,
		MaxReads: s.cfg.API.MaxReads, MaxWrites: s.cfg.API.MaxWrites, MaxStreams: s.cfg.API.MaxStreams, RequestTimeout: s.cfg.API.RequestTimeout,
		CheckNodeIPs: s.services.cluster.CheckNodeClaim, Admission: s.cfg.API.Admission, PodPresets: s.cfg.API.PodPresets, Initializers: s.cfg.API.Initializers, Settings: s.cfg.flagValues(),
	})
	if err != nil {
		return err
	}
	if err := s.writeKubeconfig(cluster.Records(s.store.View())); err != nil {
		return err
	}
	s.parts.keep("kubeconfig", s.followAdmin)
	s.parts.start("API", s.api.Run)
	s.startGatewayAPI()
	s.parts.keep("milestones", func(ctx context.Context) error {
		if await(ctx, s.api.Ready()) {
			s.progress.reached(milestoneAPI)
			s.invite(ctx)
		}
		<-ctx.Done()
		return nil
	})
	return nil
}

// subjects are the names and addresses the API's certificate must carry beside
// those that every cluster has.
func (s *server) subjects(advertise netip.Addr) (names []string, ips []net.IP) {
	names = []string{s.cfg.NodeName}
	ips = append([]net.IP{advertise.AsSlice(), s.nodeIP.AsSlice()}, s.cfg.nodeIPs(s.nodeIP)...)
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

// localURL is how programs on this machine reach the API.
func (s *server) localURL() string {
	host := s.cfg.BindAddress
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(s.cfg.Port))
}

func (s *server) startLeader() error {
	pods, err := prefixes(s.cfg.ClusterCIDR)
	if err != nil {
		return err
	}
	pods = append(pods, netip.Prefix{}) // of the other family; commonly none
	signer, err := s.signer()
	if err != nil {
		return err
	}
	cfg := leader.Config{
		Elector: elector{store: s.store, api: s.api}, Identity: s.cfg.NodeName, Logger: s.log,
		APIServers: s.apiServers(), NodeLiveness: s.liveness,
		DisableCloud: s.cfg.Cloud.Disable, LoadBalancer: s.cfg.Cloud.pools(s.cfg.ClusterCIDR, s.cfg.ServiceCIDR),
		ClusterCIDR: pods[0], SecondCIDR: pods[1], RootCA: s.pki.CA(), SignToken: s.api.SignToken, Certificates: signer,
		IngressStatus: s.ingressStatus,
		OnTermStarted: func(int64) { s.progress.reached(milestoneLeader) },
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	s.parts.keep("leader seen", s.awaitLeader)
	s.parts.keep("leader", func(ctx context.Context) error {
		if !await(ctx, s.api.Ready()) {
			return nil
		}
		return leader.Run(ctx, cfg)
	})
	return nil
}

// awaitLeader notes when another server leads: then controllers and scheduler
// run there.
func (s *server) awaitLeader(ctx context.Context) error {
	for {
		changed := s.store.LeaderChanged()
		if id, _ := s.store.Leader(); id != "" && id != s.store.ServerID() {
			s.progress.reached(milestoneLeader)
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// elector lets the leader package compete for a leadership that the store
// keeps, with clients whose writes the store fences.
type elector struct {
	store *raftstore.Store
	api   *control.Server
}

// Campaign implements leader.Elector.
func (e elector) Campaign(ctx context.Context) (leader.Term, error) {
	won, err := e.store.Campaign(ctx, leadership, e.store.ServerID(), leadershipTTL)
	if err != nil {
		return leader.Term{}, err
	}
	fence := won.Fence()
	return leader.Term{
		Epoch: won.Epoch(), Lost: won.Lost(), Resign: won.Resign,
		Config: configFor(e.api, &fence),
	}, nil
}

const serviceAccountPrefix = "system:serviceaccount:"

// groupsOf are what the API would give a user who proved the name.
func groupsOf(user string) []string {
	rest, ok := strings.CutPrefix(user, serviceAccountPrefix)
	if !ok {
		return nil
	}
	namespace, _, _ := strings.Cut(rest, ":")
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}
