package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/leader/apiservers"
	"github.com/balsahq/balsa/leader/certificates"
	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/clusterkeys"
	"github.com/balsahq/balsa/leader/horizontalpodautoscaler"
	"github.com/balsahq/balsa/leader/loadbalancer"
	"github.com/balsahq/balsa/leader/nodes"
	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/leader/serviceaccount"
	"github.com/balsahq/balsa/leader/workqueue"
)

// Elector lets this process compete for the cluster's one leadership.
type Elector interface {
	// Campaign blocks until the leadership is won or ctx ends.
	Campaign(ctx context.Context) (Term, error)
}

// Term is one leadership from being won to being lost.
type Term struct {
	Epoch  int64           // grows from term to term
	Lost   <-chan struct{} // closed when the leadership has ended, for any reason
	Resign func(context.Context) error
	// Config returns an API client configuration that acts as user. A user of the form
	// system:serviceaccount:<namespace>:<name> carries the groups of a service account. Every write made with it is
	// refused once the term is over.
	Config func(user string) *rest.Config
}

// Config configures Run.
type Config struct {
	Elector  Elector
	Identity string // of this process, shown as the holder of Leases
	Logger   *slog.Logger

	ClusterCIDR  netip.Prefix // of all pods; the zero value leaves spec.podCIDR of nodes alone
	NodeCIDRBits int          // length of one node's prefix; by default 24, of IPv6 64 or 16 more than the cluster's
	// SecondCIDR is the pod network of the second family, in a dual-stack cluster; each node gets a part of it, too.
	SecondCIDR netip.Prefix

	// APIServers gives the addresses of the API servers, for the endpoints of the kubernetes Service. Without a List the
	// endpoints are not changed.
	APIServers apiservers.Source

	// Cloud is the provider of the machines; without a name it is cloud.BareMetal.
	Cloud cloud.Provider
	// DisableCloud leaves nodes and routes to an external cloud controller manager.
	DisableCloud bool
	// DisableLocalStorage turns off the provisioner of volumes on nodes' disks.
	DisableLocalStorage bool
	// LoadBalancer has the default address pools of Services of type LoadBalancer. They are used if the cluster has no other
	// pools and Cloud has no load balancers.
	LoadBalancer loadbalancer.Config

	// Autoscaling has the settings of all HorizontalPodAutoscalers. The zero value is upstream's defaults.
	Autoscaling horizontalpodautoscaler.Config

	// Scheduler has the scheduler's profiles. The zero value is upstream's default profile.
	Scheduler profile.Settings

	// IngressStatus returns the controller that writes the status of Ingresses and Gateways; nil: their status is not
	// written.
	IngressStatus func(workqueue.Env) (workqueue.Runner, error)

	NodeGrace     time.Duration          // how long a node may be silent; 50 s by default
	NodeLiveness  nodes.Liveness         // detects dead nodes earlier than Leases; optional
	MaxEndedPods  int                    // how many ended pods are kept; 12500 by default
	Keys          clusterkeys.Source     // its RootCA is published in every namespace; without one kube-root-ca.crt is left alone
	SignToken     serviceaccount.Signer  // of token Secrets; nil leaves them alone
	LegacyTokens  bool                   // gives every ServiceAccount a token Secret
	Certificates  certificates.Authority // signs approved requests for certificates; without Sign they are not signed here
	OnTermStarted func(epoch int64)      // called when everything of a term is running; optional
}

// Validate reports every fault of the configuration at once and fills in the defaults.
func (c *Config) Validate() error {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.NodeGrace == 0 {
		c.NodeGrace = 50 * time.Second
	}
	if c.MaxEndedPods == 0 {
		c.MaxEndedPods = 12500
	}
	if c.Autoscaling == (horizontalpodautoscaler.Config{}) {
		c.Autoscaling = horizontalpodautoscaler.DefaultConfig()
	}
	if c.Cloud.Name == "" {
		c.Cloud = cloud.BareMetal(nil)
	}
	var errs []error
	if c.Elector == nil {
		errs = append(errs, errors.New("no elector"))
	}
	if c.Identity == "" {
		errs = append(errs, errors.New("no identity"))
	}
	if c.NodeGrace < 0 {
		errs = append(errs, fmt.Errorf("node grace %s is negative", c.NodeGrace))
	}
	for _, one := range c.ranges() {
		errs = append(errs, one.Validate())
	}
	if c.SecondCIDR.IsValid() && c.SecondCIDR.Addr().Is4() == c.ClusterCIDR.Addr().Is4() {
		errs = append(errs, fmt.Errorf("cluster CIDRs %s and %s are of one family", c.ClusterCIDR, c.SecondCIDR))
	}
	errs = append(errs, c.LoadBalancer.Validate(), c.Autoscaling.Validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("leader configuration: %w", err)
	}
	return nil
}

// podNetworks are the networks of all pods.
func (c *Config) podNetworks() (list []netip.Prefix) {
	for _, r := range c.ranges() {
		list = append(list, r.Cluster)
	}
	return list
}

func (c *Config) ranges() (list []nodes.RangeConfig) {
	for i, cluster := range []netip.Prefix{c.ClusterCIDR, c.SecondCIDR} {
		if !cluster.IsValid() {
			continue
		}
		bits := 24
		if cluster.Addr().Is6() {
			bits = max(64, min(cluster.Bits()+16, 120))
		}
		if i == 0 && c.NodeCIDRBits != 0 {
			bits = c.NodeCIDRBits
		}
		list = append(list, nodes.RangeConfig{Cluster: cluster, NodeBits: bits})
	}
	return list
}
