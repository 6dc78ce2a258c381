package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/raftstore/member"
)

// config is everything a server or an agent can be told, by flag or by the same
// name in the file given with --config; a flag wins.
type config struct {
	DataDir          string
	RunDir           string
	LogDir           string
	CgroupRoot       string
	NodeName         string
	NodeIP           string
	NodeLabels       map[string]string
	BindAddress      string
	AdvertiseAddress string
	Port             int
	KubeletPort      int
	TLS              tlsFlags
	ServiceCIDR      string
	ClusterCIDR      string
	ClusterDNS       string
	ClusterDomain    string
	OverlayMode      string
	VXLANOffload     bool
	VXLANPort        int
	UDPPort          int
	Encryption       string // between nodes
	WireGuardPort    int
	NetworkPlugin    string
	TLSSANs          []string
	RuntimeEndpoint  string
	MaxPods          int
	Pods             podRules
	Proxy            proxyPorts
	Logs             nodeLogs
	DisableAgent     bool
	LogLevel         string
	Join             []string // servers of the cluster to join
	Token            string
	TokenFile        string
	Replace          bool // agent only
	agentOnly        bool
	Snapshots        snapshotSettings
	API              apiConfig
	GossipPort       int
	Cloud            cloudConfig
	Ingress          ingressConfig
	NodeTunnel       string

	UnreachableTolerationSeconds int64
	ProfileAddress               string
	LocalAPIPort                 int // agent only
}

func defaultConfig() config {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return config{
		DataDir: fromEnv("BALSA_DATA_DIR", "/var/lib/balsa"), RunDir: fromEnv("BALSA_RUN_DIR", "/run/balsa"),
		LogDir: "/var/log", CgroupRoot: "/kubepods", NodeName: strings.ToLower(host),
		BindAddress: "0.0.0.0", Port: 6443, KubeletPort: 10250,
		ServiceCIDR: "10.96.0.0/16", ClusterCIDR: "10.244.0.0/16", ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local",
		OverlayMode: string(routes.Auto), VXLANPort: overlay.DefaultVXLANPort, UDPPort: overlay.DefaultUDPPort, Encryption: encryptionNone, WireGuardPort: overlay.DefaultWireGuardPort, NetworkPlugin: pluginBalsa,
		MaxPods: 110, Pods: defaultPodRules(), Proxy: defaultProxyPorts(), Logs: defaultNodeLogs(), LogLevel: "info", GossipPort: member.DefaultPort, UnreachableTolerationSeconds: 300, LocalAPIPort: 6444, Snapshots: defaultSnapshotSettings(), Ingress: defaultIngressConfig(), NodeTunnel: string(tunnel.Auto), API: defaultAPIConfig(),
	}
}

func fromEnv(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// Where the parts keep their things.
func (c *config) serverDir() string  { return filepath.Join(c.DataDir, "server") }
func (c *config) agentDir() string   { return filepath.Join(c.DataDir, "agent") }
func (c *config) binDir() string     { return filepath.Join(c.DataDir, "bin") }
func (c *config) cniConfDir() string { return filepath.Join(c.DataDir, "agent", "cni", "net.d") }
func (c *config) kubeconfigPath() string {
	return filepath.Join(c.DataDir, "server", "admin.kubeconfig")
}
func (c *config) logPath() string { return filepath.Join(c.DataDir, "balsa.log") }
func (c *config) pidPath() string { return filepath.Join(c.RunDir, "balsa.pid") }

// bindPaths registers the flags that every command needs to find a cluster.
func (c *config) bindPaths(f *pflag.FlagSet) {
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory for everything that is kept; also $BALSA_DATA_DIR")
	f.StringVar(&c.RunDir, "run-dir", c.RunDir, "directory for sockets and process ids; also $BALSA_RUN_DIR")
}

func (c *config) bindNode(f *pflag.FlagSet) {
	f.StringVar(&c.NodeName, "node-name", c.NodeName, "name of this machine's Node object")
	f.StringVar(&c.NodeIP, "node-ip", c.NodeIP, "address other nodes reach this one at; with one of the other family after a comma the Node has both (default: the one towards the default route and, in a cluster of both families, the one of the other family beside it)")
	f.StringToStringVar(&c.NodeLabels, "node-label", c.NodeLabels, "labels for this machine's Node object, as key=value")
	f.IntVar(&c.KubeletPort, "kubelet-port", c.KubeletPort, "port of the node's own API (logs, exec, metrics)")
	f.IntVar(&c.MaxPods, "max-pods", c.MaxPods, "how many pods this node takes at most")
	f.StringVar(&c.RuntimeEndpoint, "container-runtime-endpoint", c.RuntimeEndpoint, "use this CRI socket (unix:///…) instead of the containerd inside this binary")
	f.StringVar(&c.LogDir, "log-dir", c.LogDir, "directory for the logs of containers, in its pods/ and containers/")
	f.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "control group under which pods run; one installation, one group")
	c.Pods.bind(f)
	c.Proxy.bind(f)
	c.Logs.bind(f)
	c.Cloud.bindNode(f)
	c.Ingress.bindNode(f)
	c.TLS.bind(f)
	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	f.StringVar(&c.ProfileAddress, "profile-address", c.ProfileAddress, "serve Go's profiles (net/http/pprof) on this loopback address, such as 127.0.0.1:6060")
	f.StringVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "address of the cluster's DNS; inside the service CIDR")
	f.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	f.StringVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "addresses of Services. For Services of both families give a prefix of each, as 10.96.0.0/16,fd00:96::/108; the first is that of Services that ask for none")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "addresses of pods; each node gets a part. For pods of both families give a prefix of each, as 10.244.0.0/16,fd00:244::/48")
	f.StringVar(&c.OverlayMode, "overlay-mode", c.OverlayMode, "how pods of other nodes are reached: host-gw (by a route; the nodes share a subnet), vxlan (in UDP packets), auto (host-gw where possible, else vxlan), or udp (in UDP packets by this process, where neither works); on all nodes the same")
	f.IntVar(&c.VXLANPort, "vxlan-port", c.VXLANPort, "UDP port of VXLAN between nodes; on all nodes the same")
	f.BoolVar(&c.VXLANOffload, "vxlan-offload", c.VXLANOffload, "leave the checksums and the segmentation of packets in VXLAN to this machine's network card: several times the throughput, but some cards and kernels get it wrong, and packets are lost (see `balsa net check`)")
	f.StringVar(&c.Encryption, "overlay-encryption", c.Encryption, "what packets to other nodes' pods are encrypted with: none, or wireguard, with a key that each node makes; on all nodes the same")
	f.IntVar(&c.WireGuardPort, "wireguard-port", c.WireGuardPort, "UDP port between nodes of --overlay-encryption wireguard; on all nodes the same")
	f.IntVar(&c.UDPPort, "udp-port", c.UDPPort, "UDP port between nodes of --overlay-mode udp; on all nodes the same")
	f.StringVar(&c.NetworkPlugin, "network-plugin", c.NetworkPlugin, "who attaches pods and carries their packets: balsa, or cni for a plugin of yours, which puts its configuration into agent/cni/net.d of the data directory and its programs into bin; Services and DNS stay Balsa's")
}

// bindJoin registers the flags by which a machine becomes a member.
func (c *config) bindJoin(f *pflag.FlagSet) {
	f.StringSliceVar(&c.Join, "join", c.Join, "servers of the cluster to become a member of, as host or host:port; needed once")
	f.StringVar(&c.Token, "token", c.Token, "join token, from `balsa token create`")
	f.StringVar(&c.TokenFile, "token-file", c.TokenFile, "file with the join token, which keeps it out of the list of processes")
}

func (c *config) bindServer(f *pflag.FlagSet) {
	c.bindJoin(f)
	f.IntVar(&c.GossipPort, "gossip-port", c.GossipPort, "UDP and TCP port at which servers hear of each other; the same on all servers")
	c.Snapshots.bind(f)
	c.Ingress.bindServer(f)
	f.StringVar(&c.NodeTunnel, "node-tunnel", c.NodeTunnel, "when this server reaches nodes, pods and Services by the connections that nodes keep to it: auto (when the direct way fails or is slow), always, never (they tell only whether nodes are alive)")
	c.Cloud.bindServer(f)
	c.API.bind(f)
	f.Int64Var(&c.UnreachableTolerationSeconds, "unreachable-toleration-seconds", c.UnreachableTolerationSeconds,
		"how long pods that say nothing about it wait for a node that is gone before they are replaced elsewhere")
	f.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address the API listens on")
	f.StringVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress, "address clients reach the API at (default: the node's)")
	f.IntVar(&c.Port, "port", c.Port, "port of the API")
	f.StringSliceVar(&c.TLSSANs, "tls-san", c.TLSSANs, "further names and addresses for the API's certificate")
	f.BoolVar(&c.DisableAgent, "disable-agent", c.DisableAgent, "run the control plane only: this machine takes no pods")
}

// load reads --config into the flags that were not given on the command line.
func (c *config) load(cmd *cobra.Command, path string) error {
	if path == "" {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(raw, &values); err != nil {
		return fmt.Errorf("configuration %s is not valid YAML: %s", path, strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	for name, value := range values {
		flag := cmd.Flags().Lookup(name)
		if flag == nil || name == "config" {
			return fmt.Errorf("configuration %s: unknown setting %q; the settings are the flags of `balsa %s --help`", path, name, cmd.Name())
		}
		if flag.Changed {
			continue
		}
		if err := flag.Value.Set(flagText(value)); err != nil {
			return fmt.Errorf("configuration %s: %s: %w", path, name, err)
		}
	}
	return nil
}

// prepare reads the file given with --config, if any, and checks everything.
func (c *config) prepare(cmd *cobra.Command, path string) error {
	if err := c.load(cmd, path); err != nil {
		return err
	}
	c.API.recordIn(filepath.Join(c.serverDir(), "logs"))
	return c.Validate()
}

// flagText writes a YAML value as a flag would be given.
func flagText(value any) string {
	switch v := value.(type) {
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = fmt.Sprint(v[i])
		}
		return strings.Join(parts, ",")
	case map[string]any:
		parts := make([]string, 0, len(v))
		for key, val := range v {
			parts = append(parts, fmt.Sprintf("%s=%v", key, val))
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(value)
}

// Validate reports every fault at once, and what would be right.
func (c *config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for flag, dir := range map[string]string{"data-dir": c.DataDir, "run-dir": c.RunDir, "log-dir": c.LogDir, "cgroup-root": c.CgroupRoot} {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			fault("--%s %q: give an absolute path below /", flag, dir)
		}
	}
	if problems := validation.IsDNS1123Subdomain(c.NodeName); len(problems) > 0 {
		fault("--node-name %q: %s", c.NodeName, problems[0])
	}
	ports := map[string]int{"port": c.Port, "kubelet-port": c.KubeletPort, "gossip-port": c.GossipPort, "vxlan-port": c.VXLANPort, "udp-port": c.UDPPort, "wireguard-port": c.WireGuardPort}
	for flag, port := range ports {
		if port < 1 || port > 65535 {
			fault("--%s %d: give a port from 1 to 65535", flag, port)
		}
	}
	faults = append(faults, c.networkFaults()...)
	faults = append(faults, c.Pods.validate()...)
	faults = append(faults, c.Proxy.validate()...)
	faults = append(faults, c.Logs.validate()...)
	faults = append(faults, c.Ingress.validate()...)
	faults = append(faults, c.Cloud.validate(c.ClusterCIDR, c.ServiceCIDR)...)
	if err := c.Snapshots.validate(); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(c.API.validate(), c.TLS.validate()); err != nil {
		faults = append(faults, err)
	}
	if !slices.Contains(tunnel.Modes, tunnel.Mode(c.NodeTunnel)) {
		fault("--node-tunnel %q: give one of %v", c.NodeTunnel, tunnel.Modes)
	}
	if c.UnreachableTolerationSeconds < 0 {
		fault("--unreachable-toleration-seconds %d: give 0 or more", c.UnreachableTolerationSeconds)
	}
	if e := c.RuntimeEndpoint; e != "" && !strings.HasPrefix(e, "unix:///") {
		fault("--container-runtime-endpoint %q: give a socket as unix:///path", e)
	}
	for flag, addr := range map[string]string{"bind-address": c.BindAddress, "advertise-address": c.AdvertiseAddress} {
		if addr == "" {
			continue
		}
		if _, err := netip.ParseAddr(addr); err != nil {
			fault("--%s %q: give an IP address", flag, addr)
		}
	}
	if a := c.ProfileAddress; a != "" {
		if addr, err := netip.ParseAddrPort(a); err != nil || !addr.Addr().IsLoopback() {
			fault("--profile-address %q: give a loopback address and a port, such as 127.0.0.1:6060; profiles tell secrets", a)
		}
	}
	if _, err := c.level(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func (c *config) level() (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return level, fmt.Errorf("--log-level %q: give debug, info, warn or error", c.LogLevel)
	}
	return level, nil
}
