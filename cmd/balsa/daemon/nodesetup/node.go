package nodesetup

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/cmd/balsa/daemon/wallclock"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/node"
	"github.com/balsahq/balsa/node/counters"
	"github.com/balsahq/balsa/node/resourcemetrics"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/check"
	"github.com/balsahq/balsa/overlay/ingress"
	"github.com/balsahq/balsa/overlay/relay"
	"github.com/balsahq/balsa/overlay/routes"
)

// Node holds what the server or the agent hands to the node that it starts.
type Node struct {
	Config   *config.Node
	Logger   *slog.Logger
	Parts    *lifecycle.Group
	Progress *process.Progress
	Client   kubernetes.Interface // with the node's own identity
	Rest     *rest.Config         // of Client
	// Registrar may label the Node with roles; nil: the node has none.
	Registrar kubernetes.Interface
	// Services reads Services, their endpoints and all Nodes, which a node's own identity may not.
	Services kubernetes.Interface
	NodeIP   netip.Addr
	// APIAddresses are the addresses by which this process knows the API. No Service may claim them as its own.
	APIAddresses []netip.Addr
	Roots        func() *x509.CertPool // the CAs that count, asked each time
	FollowKeys   func(join.Pods)       // gets the node, whose pods' tokens follow the keys of the cluster
	Serving      func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Certificates counters.Certificates   // shown as metrics
	Debug        map[string]http.Handler // what the process tells of itself, by path
	Runtime      *Runtime
	Clock        *wallclock.Watch
	APIReady     <-chan struct{} // closed when the API in this process is ready; nil on an agent
	// Metrics reports the resource usage of the node and its pods to servers; NewMetrics creates it.
	Metrics *resourcemetrics.Reporter
}

// Start creates the parts of the node and starts them in Parts. Each waits until the API is ready, and the node agent also
// for the container runtime.
func (a Node) Start() error {
	shared := overlay.NewInformers(a.Services)
	state := &networkState{}
	var roles []string
	if a.Registrar != nil {
		roles = []string{"control-plane"}
	}
	policies, err := a.newPolicies()
	if err != nil {
		return err
	}
	reserved, faults := a.Config.Protection.Reserved()
	evictions, err := a.Config.Protection.Eviction.Parse()
	waves, err2 := a.Config.Protection.Shutdown.Parse()
	if err := errors.Join(append(faults, err, err2)...); err != nil {
		return err
	}
	agent, err := node.New(node.Config{
		Registrar: a.Registrar, Roles: roles,
		NodeName: a.Config.NodeName, Client: a.Client, Informers: shared, RuntimeEndpoint: a.Runtime.Endpoint,
		SandboxConfinesItself: a.Runtime.Ready != nil,
		Network:               state, NetworkReady: policies.Admit,
		RootDir: a.Config.AgentDir(), LogDir: a.Config.LogDir, CgroupParent: a.Config.CgroupRoot,
		NodeIPs: IPs(a.Config, a.NodeIP), Labels: a.Config.Ingress.Labels(a.Config.NodeLabels), KubeletPort: int32(a.Config.KubeletPort),
		Version: config.KubernetesVersion + "+balsa", ClusterDNS: []string{a.Config.ClusterDNS}, ClusterDomain: a.Config.ClusterDomain,
		AllowedUnsafeSysctls: a.Config.Pods.AllowedUnsafeSysctls, SeccompDefault: a.Config.Pods.SeccompDefault, PodPIDs: a.Config.Pods.PIDLimit(),
		StaticPodDir: a.Config.Pods.ManifestDir,
		Allocation:   a.Config.Allocation.Node(),
		Reserved:     reserved, Eviction: evictions, Shutdown: waves, ImageGCHigh: a.Config.Protection.ImageGCHigh, ImageGCLow: a.Config.Protection.ImageGCLow,
		ImageMinAge: a.Config.Protection.ImageMinAge, ImageMaxAge: a.Config.Protection.ImageMaxAge,
		MaxPods: a.Config.MaxPods, Taints: a.Config.Taints(), Logger: a.Logger,
	})
	if err != nil {
		return err
	}
	a.Clock.Notify(agent.ClockSet)
	a.FollowKeys(agent)
	settings, err := a.overlayConfig()
	if err != nil {
		return err
	}
	settings.Informers, settings.Pods, settings.Publish = shared, agent.PodInformer(), a.annotateNode
	if settings.Mode == routes.WireGuard {
		if settings.Key, err = relay.LoadKey(filepath.Join(settings.StateDir, "wireguard.key")); err != nil {
			return err
		}
	}
	network, err := overlay.New(settings)
	if err != nil {
		return err
	}
	state.ready = network.Ready()
	agent.Counters().Register(network)
	checks, err := check.NewAgent(check.AgentConfig{
		Node: a.Config.NodeName, CNIConfDir: a.Config.CNIConfDir(), CNIBinDirs: []string{a.Config.BinDir(), "/opt/cni/bin"},
		StateDir: filepath.Join(a.Config.AgentDir(), "network", "check"), Logger: a.Logger,
	})
	if err != nil {
		return err
	}
	volumes, err := a.startLocalVolumes()
	if err != nil {
		return err
	}
	api, err := a.kubeletAPI(agent, checks, volumes)
	if err != nil {
		return err
	}
	a.Parts.Start("network check", checks.Run)
	a.Parts.Start("network", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, a.APIReady) {
			return nil
		}
		return network.Run(ctx)
	})
	a.Parts.Start("DNS settings", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, a.APIReady) {
			return nil
		}
		return network.FollowDNSSettings(ctx, a.Services)
	})
	if err := a.startLoadBalancers(settings, state); err != nil {
		return err
	}
	if err := a.startIngress(ingress.Config{Informers: shared}); err != nil {
		return err
	}
	a.startPolicies(policies)
	a.Parts.Start("node", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, a.APIReady) || !lifecycle.Await(ctx, a.Runtime.Ready) {
			return nil
		}
		return agent.Run(ctx)
	})
	a.Parts.Keep("node metrics", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, agent.Connected()) {
			return nil
		}
		return a.Metrics.Run(ctx, agent.Usage)
	})
	a.Parts.Start("node API", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, agent.Connected()) {
			return nil
		}
		a.Progress.Reached(process.MilestoneRuntime)
		return api.Run(ctx)
	})
	a.Parts.Keep("node milestone", a.awaitNode)
	return nil
}
