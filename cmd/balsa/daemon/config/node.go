package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/balsahq/balsa/cmd/balsa/daemon/loglevel"
	"github.com/balsahq/balsa/node/resourcemetrics"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/raftstore/member"
)

// Node is the configuration that a server and an agent have in common.
type Node struct {
	Paths
	Cluster

	Version         string // of this program
	LogDir          string // of containers
	CgroupRoot      string
	NodeName        string
	NodeIP          string
	NodeLabels      map[string]string
	KubeletPort     int
	TLS             TLS
	OverlayMode     string
	VXLANOffload    bool
	VXLANPort       int
	UDPPort         int
	Encryption      string // of packets between nodes
	WireGuardPort   int
	NetworkPlugin   string
	RuntimeEndpoint string
	// RuntimeHandlers are programs by the name of their handler; ContainerdConfigDir holds drop-ins. Both are for the bundled
	// containerd.
	RuntimeHandlers     map[string]string
	ContainerdConfigDir string
	MaxPods             int
	// MetricResolution is how often the node measures what it and its pods use.
	MetricResolution time.Duration
	Pods             Pods
	Allocation       Allocation
	Protection       Protection
	Proxy            Proxy
	Logs             NodeLogs
	CloudProvider    string
	Ingress          Ingress
	LogLevel         string
	ProfileAddress   string
	Join             []string // servers of the cluster to join
	Token            string
	TokenFile        string
	// DisableLocalStorage leaves out the driver of local volumes and, on a server, what provisions them.
	DisableLocalStorage bool
}

// Cluster holds the settings that are the same on all machines of a cluster. The first server decides them; later members
// take them over (membership.Agree).
type Cluster struct {
	ServiceCIDR   string // one prefix, or one of each family with a comma between
	ClusterCIDR   string // the network of pods, in the same form
	ClusterDNS    string
	ClusterDomain string
	GossipPort    int
}

// DefaultCluster returns the settings of a cluster whose first server has no flags.
func DefaultCluster() Cluster {
	return Cluster{ServiceCIDR: "10.96.0.0/16", ClusterCIDR: "10.244.0.0/16", ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local", GossipPort: member.DefaultPort}
}

// DefaultNode returns the configuration of a machine without any flag.
func DefaultNode() Node {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return Node{
		Paths:   DefaultPaths(),
		Cluster: DefaultCluster(),
		LogDir:  "/var/log", CgroupRoot: "/kubepods", NodeName: strings.ToLower(host), KubeletPort: 10250,
		OverlayMode: string(routes.Auto), VXLANPort: overlay.DefaultVXLANPort, UDPPort: overlay.DefaultUDPPort, Encryption: EncryptionNone, WireGuardPort: overlay.DefaultWireGuardPort, NetworkPlugin: PluginBalsa,
		MetricResolution: resourcemetrics.DefaultInterval,
		MaxPods:          110, Pods: defaultPods(), Allocation: defaultAllocation(), Protection: defaultProtection(), Proxy: defaultProxy(), Logs: defaultNodeLogs(), Ingress: defaultIngress(), LogLevel: "info",
	}
}

// Validate reports every wrong setting at once, each with the values that are allowed.
func (c *Node) Validate() error { return errors.Join(c.faults()...) }

func (c *Node) faults() []error {
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
	faults = append(faults, portFaults(map[string]int{"kubelet-port": c.KubeletPort, "gossip-port": c.GossipPort, "vxlan-port": c.VXLANPort, "udp-port": c.UDPPort, "wireguard-port": c.WireGuardPort})...)
	faults = append(faults, c.networkFaults()...)
	faults = append(faults, c.Pods.validate()...)
	reserved, _ := c.Protection.Reserved() // Protection.validate reports what is wrong in it
	faults = append(faults, c.Allocation.validate(reserved)...)
	faults = append(faults, c.Protection.validate()...)
	faults = append(faults, c.Proxy.validate()...)
	faults = append(faults, c.Logs.validate()...)
	faults = append(faults, c.Ingress.validate()...)
	if err := c.TLS.validate(); err != nil {
		faults = append(faults, err)
	}
	if c.CloudProvider != "" && c.CloudProvider != "external" {
		fault("--cloud-provider %q: give external, or leave it out", c.CloudProvider)
	}
	if r := c.MetricResolution; r < time.Second || r > 30*time.Second {
		fault("--metric-resolution %s: give 1s to 30s; servers forget after a minute what a node said", r)
	}
	if e := c.RuntimeEndpoint; e != "" && !strings.HasPrefix(e, "unix:///") {
		fault("--container-runtime-endpoint %q: give a socket as unix:///path", e)
	}
	faults = append(faults, c.containerdFaults()...)
	if a := c.ProfileAddress; a != "" {
		if addr, err := netip.ParseAddrPort(a); err != nil || !addr.Addr().IsLoopback() {
			fault("--profile-address %q: give a loopback address and a port, such as 127.0.0.1:6060; profiles show parts of the memory, where secrets are", a)
		}
	}
	if _, err := c.level(); err != nil {
		faults = append(faults, err)
	}
	return faults
}

func portFaults(ports map[string]int) (faults []error) {
	for flag, port := range ports {
		if port < 1 || port > 65535 {
			faults = append(faults, fmt.Errorf("--%s %d: give a port from 1 to 65535", flag, port))
		}
	}
	return faults
}

// level reads LogLevel.
func (c *Node) level() (*loglevel.Setting, error) {
	s, err := loglevel.Parse(c.LogLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level %w", err)
	}
	return s, nil
}

// Levels returns what is logged at first. It is info when LogLevel is wrong, which Validate reports.
func (c *Node) Levels() *loglevel.Levels {
	s, err := c.level()
	if err != nil {
		return loglevel.At(slog.LevelInfo)
	}
	return loglevel.New(s)
}
