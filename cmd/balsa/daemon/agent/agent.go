package agent

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/cmd/balsa/daemon/wallclock"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/node/resourcemetrics"
	"github.com/balsahq/balsa/node/servers"
	nodetunnel "github.com/balsahq/balsa/node/tunnel"
)

// agent is the process of a machine that runs pods and is no server.
type agent struct {
	cfg    *config.Agent
	log    *slog.Logger
	nodeIP netip.Addr

	member *membership.Record
	clock  *wallclock.Watch
	creds  *join.Agent
	trust  *join.Trust
	keys   atomic.Pointer[join.Keys]
	client *join.Client
	set    *servers.Set
	back   *nodetunnel.Agent
	// metrics reports to servers what this node and its pods use.
	metrics *resourcemetrics.Reporter
	debug   map[string]http.Handler // see process.DebugHandlers
	parts   *lifecycle.Group
}

// Run runs an agent until ctx ends or a part fails. The caller has called cfg.Validate.
func Run(ctx context.Context, cfg *config.Agent) error {
	if err := process.RequireRoot(); err != nil {
		return err
	}
	pid, err := process.Claim(cfg.PIDFile())
	if err != nil {
		return err
	}
	defer pid.Release()
	if err := (process.Preflight{Node: true, Ports: []process.Port{{Number: cfg.KubeletPort, Flag: "kubelet-port"}}}).Check(); err != nil {
		return err
	}
	levels := cfg.Levels()
	log := process.NewLogger(levels)
	process.Prepare(log)
	a := &agent{cfg: cfg, log: log, debug: process.DebugHandlers(levels, log), parts: lifecycle.New(log)}
	defer a.parts.Stop()
	if a.nodeIP, err = nodesetup.Address(&cfg.Node); err != nil {
		return err
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	return a.parts.Wait(ctx, nil)
}

// start starts the parts: runtime, membership, the ways to the servers, certificates, node. The container runtime comes first
// because it takes longest.
func (a *agent) start(ctx context.Context) error {
	var err error
	if a.metrics, err = nodesetup.NewMetrics(&a.cfg.Node, a.log); err != nil {
		return err
	}
	progress := process.NewProgress(process.MilestoneRuntime, process.MilestoneNode)
	process.StartHousekeeping(a.parts, a.cfg.ProfileAddress, progress.Done())
	rt, err := nodesetup.StartRuntime(&a.cfg.Node, a.parts, a.log)
	if err != nil {
		return err
	}
	if err := a.openMembership(ctx); err != nil {
		return err
	}
	if err := a.startServerList(); err != nil {
		return err
	}
	a.startCertificates()
	if err := a.startLocalAPI(); err != nil {
		return err
	}
	identity, client, err := a.clientFor(a.creds.Client.Path())
	if err != nil {
		return err
	}
	_, services, err := a.clientFor(a.creds.Services.Path())
	if err != nil {
		return err
	}
	return nodesetup.Node{
		Config: &a.cfg.Node, Logger: a.log, Parts: a.parts, Progress: progress, Client: client, Rest: identity, Services: services, NodeIP: a.nodeIP, APIAddresses: a.cfg.APIAddresses(),
		Roots: a.trust.Pool, FollowKeys: a.followKeys, Serving: a.creds.Serving.GetCertificate, Runtime: rt, Clock: a.clock, Metrics: a.metrics,
		Certificates: a.certificateMetrics(), Debug: a.debug,
	}.Start()
}
