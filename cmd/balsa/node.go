package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/cmd/balsa/wallclock"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/node"
	"github.com/balsahq/balsa/node/kubeletapi"
	noderuntime "github.com/balsahq/balsa/node/runtime"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/check"
	"github.com/balsahq/balsa/overlay/ingress"
	"github.com/balsahq/balsa/overlay/relay"
	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/raftstore"
)

// nodeRuntime is the way to containers: the bundled containerd, or a socket
// that somebody else serves.
type nodeRuntime struct {
	endpoint string
	ready    <-chan struct{} // nil for a foreign socket
}

func (c *config) runtimeConfig() noderuntime.Config {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	return noderuntime.Config{
		DataDir: c.agentDir(), RunDir: c.RunDir, BinDir: c.binDir(), CNIConfDir: c.cniConfDir(),
		Program: program, Logger: slog.Default(),
	}
}

func startRuntime(cfg *config, parts *parts, log *slog.Logger) (*nodeRuntime, error) {
	if cfg.RuntimeEndpoint != "" {
		return &nodeRuntime{endpoint: cfg.RuntimeEndpoint}, nil
	}
	settings := cfg.runtimeConfig()
	settings.Logger = log
	child, err := noderuntime.New(settings)
	if err != nil {
		return nil, err
	}
	parts.start("container runtime", child.Run)
	return &nodeRuntime{endpoint: settings.Endpoint(), ready: child.Ready()}, nil
}

// configFor returns the in-process clients of a term: the fence, when there is
// one, goes with every write.
func configFor(api *control.Server, fence *raftstore.Compare) func(user string) *rest.Config {
	return func(user string) *rest.Config {
		return api.Client(control.Identity{User: user, Groups: groupsOf(user), Fence: fence})
	}
}

// agentParts is what a node needs of whoever starts it.
type agentParts struct {
	cfg       *config
	log       *slog.Logger
	parts     *parts
	progress  *progress
	client    kubernetes.Interface
	rest      *rest.Config         // of client
	registrar kubernetes.Interface // may label the Node with roles; nil when this node has none
	services  kubernetes.Interface // reads Services, their endpoints and all Nodes, which a node's own identity may not
	nodeIP    netip.Addr
	ca        *x509.CertPool
	serving   func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	runtime   *nodeRuntime
	clock     *wallclock.Watch
	apiReady  <-chan struct{} // of the API in this process; nil when it is another's
}

func (s *server) startNode(rt *nodeRuntime) error {
	identity := s.api.Client(control.Identity{User: "system:node:" + s.cfg.NodeName, Groups: []string{"system:nodes"}})
	client, err := kubernetes.NewForConfig(identity)
	if err != nil {
		return err
	}
	serving, err := s.pki.NodeServing(s.cfg.NodeName, []string{s.cfg.NodeName}, append(s.cfg.nodeIPs(s.nodeIP), net.IPv4(127, 0, 0, 1)))
	if err != nil {
		return err
	}
	registrar, err := kubernetes.NewForConfig(s.api.Client(control.Identity{User: "balsa:registrar", Groups: []string{"system:masters"}}))
	if err != nil {
		return err
	}
	services, err := kubernetes.NewForConfig(s.api.Client(control.Identity{User: "system:kube-proxy"}))
	if err != nil {
		return err
	}
	if err := s.startWayBack(); err != nil {
		return err
	}
	return agentParts{
		registrar: registrar, services: services,
		cfg: s.cfg, log: s.log, parts: s.parts, progress: s.progress, client: client, rest: identity, nodeIP: s.nodeIP,
		ca: s.pki.Pool(), serving: serving.GetCertificate, runtime: rt, clock: s.clock, apiReady: s.api.Ready(),
	}.start()
}

// start runs the network, the agent and the node's own API.
func (a agentParts) start() error {
	shared := overlay.NewInformers(a.services)
	state := &networkState{}
	var roles []string
	if a.registrar != nil {
		roles = []string{"control-plane"}
	}
	policies, err := a.newPolicies()
	if err != nil {
		return err
	}
	agent, err := node.New(node.Config{
		Registrar: a.registrar, Roles: roles,
		NodeName: a.cfg.NodeName, Client: a.client, Informers: shared, RuntimeEndpoint: a.runtime.endpoint,
		SandboxConfinesItself: a.runtime.ready != nil,
		Network:               state, NetworkReady: policies.Admit,
		RootDir: a.cfg.agentDir(), LogDir: a.cfg.LogDir, CgroupParent: a.cfg.CgroupRoot,
		NodeIPs: a.cfg.nodeIPs(a.nodeIP), Labels: a.cfg.Ingress.labels(a.cfg.NodeLabels), KubeletPort: int32(a.cfg.KubeletPort),
		Version: kubernetesVersion + "+balsa", ClusterDNS: []string{a.cfg.ClusterDNS}, ClusterDomain: a.cfg.ClusterDomain,
		AllowedUnsafeSysctls: a.cfg.Pods.AllowedUnsafeSysctls, SeccompDefault: a.cfg.Pods.SeccompDefault, PodPIDs: a.cfg.Pods.maxPIDs(),
		MaxPods: a.cfg.MaxPods, Taints: a.cfg.Cloud.taints(), Logger: a.log,
	})
	if err != nil {
		return err
	}
	a.clock.Notify(agent.ClockSet)
	settings, err := overlayConfig(a.cfg, a.log)
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
	checks, err := check.NewAgent(check.AgentConfig{
		Node: a.cfg.NodeName, CNIConfDir: a.cfg.cniConfDir(), CNIBinDirs: []string{a.cfg.binDir(), "/opt/cni/bin"},
		StateDir: filepath.Join(a.cfg.agentDir(), "network", "check"), Logger: a.log,
	})
	if err != nil {
		return err
	}
	api, err := a.kubeletAPI(agent, checks)
	if err != nil {
		return err
	}
	a.parts.start("network check", checks.Run)
	a.parts.start("network", func(ctx context.Context) error {
		if !await(ctx, a.apiReady) {
			return nil
		}
		return network.Run(ctx)
	})
	a.parts.start("DNS settings", func(ctx context.Context) error {
		if !await(ctx, a.apiReady) {
			return nil
		}
		return network.FollowDNSSettings(ctx, a.services)
	})
	if err := a.startBalancing(settings, state); err != nil {
		return err
	}
	if err := a.startIngress(ingress.Config{Informers: shared}); err != nil {
		return err
	}
	a.startPolicies(policies)
	a.parts.start("node", func(ctx context.Context) error {
		if !await(ctx, a.apiReady) || !await(ctx, a.runtime.ready) {
			return nil
		}
		return agent.Run(ctx)
	})
	a.parts.start("node API", func(ctx context.Context) error {
		if !await(ctx, agent.Connected()) {
			return nil
		}
		a.progress.reached(milestoneRuntime)
		return api.Run(ctx)
	})
	a.parts.keep("node milestone", a.awaitNode)
	return nil
}

// await waits for a channel, unless it is nil, and reports whether it was
// closed before ctx ended.
func await(ctx context.Context, done <-chan struct{}) bool {
	if done == nil {
		return ctx.Err() == nil
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func (a agentParts) kubeletAPI(agent *node.Agent, checks http.Handler) (*kubeletapi.Server, error) {
	authenticator, err := kubeletapi.NewAuthenticator(a.client, a.ca)
	if err != nil {
		return nil, err
	}
	authorizer, err := kubeletapi.NewAuthorizer(a.client)
	if err != nil {
		return nil, err
	}
	version, suites := a.cfg.TLS.policy()
	return kubeletapi.New(kubeletapi.Config{
		Backend: agent, NodeName: a.cfg.NodeName, Address: net.JoinHostPort("", strconv.Itoa(a.cfg.KubeletPort)),
		TLS: &tls.Config{
			MinVersion: version, CipherSuites: suites, GetCertificate: a.serving, ClientCAs: a.ca, ClientAuth: tls.RequestClientCert,
		},
		Authenticator: authenticator, Authorizer: authorizer, NetCheck: checks, NodeLogs: a.cfg.Logs.handler(a.cfg.LogDir), Counters: agent.Metrics(), Logger: a.log,
	})
}

// awaitNode reports when this machine's Node says that it is ready.
func (a agentParts) awaitNode(ctx context.Context) error {
	if !await(ctx, a.apiReady) {
		return nil
	}
	retry := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 10 * time.Second}
	if err := retry.DelayFunc().Until(ctx, true, true, a.sawNodeReady); err != nil {
		return nil // ctx has ended: sawNodeReady returns no error
	}
	a.progress.reached(milestoneNode)
	<-ctx.Done()
	return nil
}

// sawNodeReady watches this machine's Node until it is ready, and returns false when the watch fails or ends before. A
// failure is only logged: at boot, all servers may still be down.
func (a agentParts) sawNodeReady(ctx context.Context) (bool, error) {
	selector := fields.OneTermEqualSelector("metadata.name", a.cfg.NodeName).String()
	w, err := a.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		if ctx.Err() == nil {
			a.log.Warn("cannot watch this node to see when it is ready; tries again within 12 s", "node", a.cfg.NodeName, "err", err)
		}
		return false, nil
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if n, ok := event.Object.(*corev1.Node); ok && isReady(n) {
			return true, nil
		}
	}
	return false, nil
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
