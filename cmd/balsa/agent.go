package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/cmd/balsa/wallclock"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/node/servers"
	nodetunnel "github.com/balsahq/balsa/node/tunnel"
)

func newAgentCommand() *cobra.Command {
	cfg, file := defaultConfig(), ""
	cmd := &cobra.Command{
		Use:   "agent --join HOST --token TOKEN",
		Short: "Run a node that takes pods, in the foreground; --join and --token are needed the first time",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.prepare(cmd, file); err != nil {
				return err
			}
			cfg.agentOnly = true
			return runAgent(cmd.Context(), &cfg)
		},
	}
	cfg.bindPaths(cmd.Flags())
	cfg.bindNode(cmd.Flags())
	cfg.bindJoin(cmd.Flags())
	cmd.Flags().IntVar(&cfg.LocalAPIPort, "local-api-port", cfg.LocalAPIPort, "port on 127.0.0.1 at which programs of this machine reach the API on whichever server lives; 0 for none")
	cmd.Flags().BoolVar(&cfg.Replace, "replace", cfg.Replace, "take the name of a node that is gone for good; needs a token of `balsa token create --replace NODE`")
	cmd.Flags().StringVar(&file, "config", file, "YAML file whose keys are the names of these flags")
	return cmd
}

// agent is a machine that runs pods and is no server.
type agent struct {
	cfg    *config
	log    *slog.Logger
	nodeIP netip.Addr

	member *membership
	clock  *wallclock.Watch
	creds  *join.Agent
	client *join.Client
	set    *servers.Set
	back   *nodetunnel.Agent
	parts  *parts
}

func runAgent(ctx context.Context, cfg *config) error {
	pid, err := claimRunDir(cfg)
	if err != nil {
		return err
	}
	defer pid.release()
	if err := thisHost().preflight(cfg, true); err != nil {
		return err
	}
	log := newLogger(cfg)
	forbidCore(log)
	containPanics(log)
	a := &agent{cfg: cfg, log: log, parts: newParts(log)}
	defer a.parts.stop()
	if a.nodeIP, err = nodeAddress(cfg); err != nil {
		return err
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	return a.parts.wait(ctx, nil)
}

func (a *agent) start(ctx context.Context) error {
	progress := newProgress(milestoneRuntime, milestoneNode)
	a.parts.startHousekeeping(a.cfg, progress.done)
	rt, err := startRuntime(a.cfg, a.parts, a.log)
	if err != nil {
		return err
	}
	for _, step := range []func() error{func() error { return a.becomeMember(ctx) }, a.knowServers} {
		if err := step(); err != nil {
			return err
		}
	}
	ca, err := os.ReadFile(join.CAFile(a.cfg.agentDir()))
	if err != nil {
		return err
	}
	identity, client, err := a.clientFor(ca, a.creds.Client.Path())
	if err != nil {
		return err
	}
	_, services, err := a.clientFor(ca, a.creds.Services.Path())
	if err != nil {
		return err
	}
	return agentParts{
		cfg: a.cfg, log: a.log, parts: a.parts, progress: progress, client: client, rest: identity, services: services, nodeIP: a.nodeIP,
		ca: poolOf(ca), serving: a.creds.Serving.GetCertificate, runtime: rt, clock: a.clock,
	}.start()
}

// becomeMember joins, unless this machine has.
func (a *agent) becomeMember(ctx context.Context) error {
	dir := a.cfg.agentDir()
	r, err := join.Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if len(a.cfg.Join) == 0 {
			return errors.New("this machine is no member of a cluster yet: give --join HOST and --token TOKEN, from `balsa token create --role agent` on a server")
		}
		var token string
		if token, err = a.cfg.token(); err != nil {
			return err
		}
		a.log.Info("joining the cluster", "at", a.cfg.Join)
		r, err = join.Join(ctx, join.Options{
			Addrs: a.cfg.Join, Token: token, Dir: dir, Name: a.cfg.NodeName, Addresses: a.addresses(),
			Version: version, Replace: a.cfg.Replace, Logger: a.log,
		})
	}
	if err != nil {
		return err
	}
	if r.Name != a.cfg.NodeName {
		return fmt.Errorf("this machine joined as %s: start it with --node-name %s, or remove %s to join anew", r.Name, r.Name, dir)
	}
	a.member = &membership{dir: dir, r: r}
	if err := a.cfg.agree(r.Settings); err != nil {
		return err
	}
	if a.creds, err = join.OpenAgent(dir, nil, a.log); err != nil {
		return err
	}
	if !a.creds.Client.Valid() {
		a.log.Warn("this node's certificate is not valid now; it is renewed with its key, as long as the servers have that on record", "directory", dir)
	}
	return nil
}

func poolOf(pem []byte) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pool
}

// knowServers sets up the ways to the servers: for the API and for the cluster's
// own service, which renews this node's certificates.
func (a *agent) knowServers() error {
	var err error
	a.set, err = servers.New(servers.Config{Node: a.cfg.NodeName, Servers: listOf(addressBook(a.member.get().Servers)), Logger: a.log})
	if err != nil {
		return err
	}
	a.parts.keep("servers", a.set.Run)
	ca, err := os.ReadFile(join.CAFile(a.cfg.agentDir()))
	if err != nil {
		return err
	}
	if err := a.startWayBack(poolOf(ca)); err != nil {
		return err
	}
	a.client, err = join.NewClient(join.ClientConfig{
		Roots: poolOf(ca), Certificate: a.creds.Client.GetClientCertificate, Logger: a.log,
		Servers: func() []string {
			var out []string
			for _, s := range a.set.Servers() {
				out = append(out, s.Addr)
			}
			return out
		},
	})
	if err != nil {
		return err
	}
	a.creds.Client.Notify(a.set.Renew) // the others are renewed before it
	a.clock = wallclock.New(a.log)
	a.clock.Notify(a.creds.Wake)
	a.parts.keep("clock", a.clock.Run)
	a.parts.keep("certificates", func(ctx context.Context) error {
		defer a.client.Close()
		return a.creds.Run(ctx, a.client, a.addresses, func(list []*clusterpb.ServerAddress) { a.learn(addressBook(list)) })
	})
	a.parts.keep("server list", a.followServers)
	if a.cfg.LocalAPIPort == 0 {
		return nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(a.cfg.LocalAPIPort)))
	if err != nil {
		return fmt.Errorf("listen for programs of this machine: %w; choose another --local-api-port, or 0 for none", err)
	}
	balancer, err := servers.NewBalancer(servers.BalancerConfig{Listener: listener, Set: a.set, Logger: a.log})
	if err != nil {
		listener.Close()
		return err
	}
	a.parts.start("local API", balancer.Run)
	return nil
}

func listOf(book map[string]string) []servers.Server {
	var out []servers.Server
	for id, addr := range book {
		out = append(out, servers.Server{ID: id, Addr: addr, Live: true})
	}
	return out
}

// followServers keeps the list of servers as the servers' records have it.
func (a *agent) followServers(ctx context.Context) error {
	return a.client.FollowServers(ctx, func(answer []*clusterpb.ServerAddress) {
		var list []servers.Server
		for _, s := range answer {
			if s.Address != "" {
				list = append(list, servers.Server{ID: s.ServerId, Addr: s.Address, Live: s.Live})
			}
		}
		if err := a.set.Update(list); err != nil {
			a.log.Warn("the list of servers is not taken", "error", err)
			return
		}
		a.back.Update(connectTo(list))
		a.learn(addressBook(answer))
	})
}

// learn keeps where the servers are, for the next start.
func (a *agent) learn(book map[string]string) {
	if err := a.member.learn(book); err != nil {
		a.log.Warn("addresses of the servers are not kept", "error", err)
	}
}

// addresses are those that this machine's certificate is for.
func (a *agent) addresses() (list []string) {
	for _, ip := range a.cfg.nodeIPs(a.nodeIP) {
		list = append(list, ip.String())
	}
	return list
}

// clientFor is a client of the API on any server, with the certificate in a file
// that is renewed.
func (a *agent) clientFor(ca []byte, certificate string) (*rest.Config, kubernetes.Interface, error) {
	base := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertFile: certificate, KeyFile: certificate}}
	base.ContentType = "application/vnd.kubernetes.protobuf"
	base.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	base.QPS, base.Burst = -1, -1
	shared, err := a.set.Config(base)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(shared)
	return shared, client, err
}
