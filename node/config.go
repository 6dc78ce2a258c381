package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	criapi "k8s.io/cri-api/pkg/apis"

	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/shutdown"
)

// Network is what the agent asks of the pod network of this node.
type Network interface {
	// Ready returns nil once pods can be attached, else the reason why not.
	Ready() error
}

// Config is what an Agent needs.
type Config struct {
	// NodeName is the name of the Node object. The agent runs the pods bound to it.
	NodeName string
	// Client is the API client, with the rights of a node.
	Client kubernetes.Interface
	// Registrar creates the Node and sets its labels; default Client. Node admission forbids a node to set role labels on
	// itself, so this is a client that may.
	Registrar kubernetes.Interface
	// Informers supplies Services (for the environment of containers). It may be shared; the agent starts it.
	Informers informers.SharedInformerFactory

	// RuntimeEndpoint is the CRI socket, such as "unix:///run/balsa/containerd.sock".
	RuntimeEndpoint string
	// Connect replaces the dialling of RuntimeEndpoint (tests, in-process runtimes). May be nil.
	Connect func(ctx context.Context) (criapi.RuntimeService, criapi.ImageManagerService, error)
	// SandboxConfinesItself: the runtime's sandbox image installs a seccomp filter of its own, as the carried one does.
	// The default profile is then not asked for: compiling it costs each pod tens of milliseconds of CPU.
	SandboxConfinesItself bool
	// Network reports whether pods can be attached; nil: the runtime alone reports it.
	Network Network
	// NetworkReady returns when the network's rules for a pod's addresses are in place. It is called before each start of a
	// container, so it must be quick when nothing is to be done. nil: containers need not wait.
	NetworkReady func(ctx context.Context, pod *v1.Pod, addresses []netip.Addr) error

	// RootDir holds pods/<uid> and seccomp/; default /var/lib/balsa/agent.
	RootDir string
	// LogDir holds pods/ and containers/; default /var/log.
	LogDir string
	// CgroupParent is the cgroup of all pods; default /kubepods.
	CgroupParent string
	// CgroupRoot is where cgroups are mounted; default /sys/fs/cgroup.
	CgroupRoot string
	// ResolvConf is the host's resolver configuration that pods may inherit; default /etc/resolv.conf.
	ResolvConf string
	// StaticPodDir holds manifests of pods that run without the API; "" means none.
	StaticPodDir string

	// NodeIPs are the addresses of this node, the first one is primary.
	NodeIPs []net.IP
	// Hostname is the Node's Hostname address and kubernetes.io/hostname label; default NodeName.
	Hostname string
	// Labels are set on the Node at registration, besides the well-known ones.
	Labels map[string]string
	// Roles become node-role.kubernetes.io/<role> labels.
	Roles []string
	// Taints are set on the Node when it is created.
	Taints []v1.Taint
	// ProviderID is set in the Node's spec when it is created.
	ProviderID string
	// KubeletPort is where the kubelet API listens; default 10250.
	KubeletPort int32
	// Version is the kubelet version the Node reports, such as "v1.36.3".
	Version string

	// ClusterDNS are the name servers of pods; ClusterDomain is the cluster's domain (default cluster.local).
	ClusterDNS    []string
	ClusterDomain string

	// MaxPods is the Node's capacity of pods; default 110.
	MaxPods int
	// PodPIDs limits the processes of a pod; 0 means no limit.
	PodPIDs int64
	// SeccompDefault runs containers that name no seccomp profile with the runtime's default one, not unconfined.
	SeccompDefault bool
	// AllowedUnsafeSysctls are sysctls that pods may set besides the safe ones: names, or prefixes that end in "*".
	AllowedUnsafeSysctls []string
	// Reserved is kept from pods, for the system and for this program: it is taken off capacity to give allocatable.
	Reserved v1.ResourceList
	// Allocation says how pods get CPUs of their own.
	Allocation Allocation
	// Eviction says when pods are evicted because the node runs short of something; the zero value never.
	Eviction eviction.Config
	// Shutdown says how long which pods have to end when the machine goes down; none: it is not waited for.
	Shutdown []shutdown.Group
	// SystemBus replaces the connection to the machine's D-Bus (tests). May be nil.
	SystemBus func(context.Context) (*dbus.Conn, error)
	// LogMaxSize and LogMaxFiles bound a container's log; default 10 MiB and 5.
	LogMaxSize  int64
	LogMaxFiles int
	// ImageGCHigh and ImageGCLow are the percentages of the image file system at which unused images are removed,
	// and down to which; default 85 and 80.
	ImageGCHigh, ImageGCLow int
	// ImageMinAge protects an image between its pull and its first use; default 2 minutes. Images that were not used for
	// ImageMaxAge are removed; 0: none is.
	ImageMinAge, ImageMaxAge time.Duration

	Logger *slog.Logger
}

// Validate fills in defaults and reports every fault at once.
func (c *Config) Validate() error {
	c.setDefaults()
	var errs []error
	fault := func(bad bool, what string) {
		if bad {
			errs = append(errs, errors.New("node: "+what))
		}
	}
	fault(c.NodeName == "", "NodeName is empty")
	fault(c.Client == nil, "Client is nil")
	fault(c.Informers == nil, "Informers is nil")
	fault(c.RuntimeEndpoint == "" && c.Connect == nil, "neither RuntimeEndpoint nor Connect is set")
	fault(len(c.NodeIPs) == 0, "NodeIPs is empty")
	fault(c.Version == "", "Version is empty")
	fault(c.MaxPods < 0, "MaxPods is negative")
	fault(c.ImageGCLow > c.ImageGCHigh, fmt.Sprintf("ImageGCLow %d is above ImageGCHigh %d", c.ImageGCLow, c.ImageGCHigh))
	capacity := c.capacity()
	for name, q := range c.Reserved {
		if total, ok := capacity[name]; ok && q.Cmp(total) > 0 {
			fault(true, fmt.Sprintf("%s %s is reserved, of a capacity of %s", q.String(), name, total.String()))
		}
	}
	fault(!strings.HasPrefix(c.CgroupParent, "/"), "CgroupParent is not absolute")
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	c.Allocation.setDefaults()
	str := func(p *string, d string) {
		if *p == "" {
			*p = d
		}
	}
	str(&c.RootDir, "/var/lib/balsa/agent")
	str(&c.LogDir, "/var/log")
	str(&c.CgroupParent, "/kubepods")
	str(&c.ResolvConf, "/etc/resolv.conf")
	str(&c.Hostname, c.NodeName)
	str(&c.ClusterDomain, "cluster.local")
	if c.KubeletPort == 0 {
		c.KubeletPort = 10250
	}
	if c.MaxPods == 0 {
		c.MaxPods = 110
	}
	if c.LogMaxSize == 0 {
		c.LogMaxSize = 10 << 20
	}
	if c.LogMaxFiles == 0 {
		c.LogMaxFiles = 5
	}
	if c.ImageGCHigh == 0 {
		c.ImageGCHigh = 85
	}
	if c.ImageGCLow == 0 {
		c.ImageGCLow = 80
	}
	if c.ImageMinAge == 0 {
		c.ImageMinAge = 2 * time.Minute
	}
	if c.Registrar == nil {
		c.Registrar = c.Client
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func (c *Config) nodeIPs() []string {
	ips := make([]string, 0, len(c.NodeIPs))
	for _, ip := range c.NodeIPs {
		ips = append(ips, ip.String())
	}
	return ips
}

// Intervals of the work that no event starts.
const (
	statusInterval = 5 * time.Minute  // the Node's status is written even if nothing changed
	healthInterval = 10 * time.Second // logs are measured
	// The runtime is asked how it is every runtimeInterval. When it has not answered for runtimePatience the node is not ready;
	// then each call has runtimeLeast.
	runtimeInterval = 4 * time.Second
	runtimePatience = 9 * time.Second
	runtimeLeast    = 3 * time.Second
	notReadyPoll    = 50 * time.Millisecond
	notReadyMost    = 2 * time.Second
	syncPoll        = 5 * time.Millisecond
	relistInterval  = 5 * time.Minute // the runtime is listed though its events arrive
	gcInterval      = 5 * time.Minute
	leaseInterval   = 10 * time.Second
	leaseSeconds    = 40
)
