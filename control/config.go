package control

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/balsahq/balsa/control/audit"
	"github.com/balsahq/balsa/control/auth/admission"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/auth/authz"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/encryption"
	"github.com/balsahq/balsa/control/resourcemetrics"
	"github.com/balsahq/balsa/control/rest"
	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/raftstore"
)

// Config configures a Server.
type Config struct {
	// Store holds the objects. The caller runs and closes it; it must outlive Run.
	Store *raftstore.Store
	// PKI holds the certificates. The caller runs its renewal.
	PKI *pki.Authority
	// Listener accepts connections; Run closes it. The server does the TLS handshakes. If it and Secure are nil, the server
	// has in-process clients only.
	Listener net.Listener
	// Secure accepts connections whose handshake is done: each a *tls.Conn that negotiated h2, http/1.1 or nothing, and
	// that asked its client for a certificate without verifying it (the authenticator does). Run closes it. For a port that
	// also serves other protocols; at most one of Listener and Secure is set.
	Secure net.Listener
	// GRPC handles requests of content type application/grpc over HTTP/2, instead of the API. It must authorize them itself.
	// Nil: the API handles them, and answers 404.
	GRPC http.Handler
	// AdvertiseAddress is where members of the cluster reach this server: the endpoint of the kubernetes Service when the
	// first server makes it. From then on the controllers keep its endpoints (leader.Config.APIServers).
	AdvertiseAddress netip.Addr
	// AdvertisePort defaults to the listener's port.
	AdvertisePort int
	// ServiceCIDR holds the Services' addresses; its first is the kubernetes Service's. Default 10.96.0.0/16.
	ServiceCIDR netip.Prefix
	// SecondServiceCIDR is that of the other family; with it, Services may have an address of each. The zero value: Services
	// have one family.
	SecondServiceCIDR netip.Prefix
	// NodePorts defaults to 30000-32767.
	NodePorts rest.PortRange
	// ClusterDomain defaults to cluster.local.
	ClusterDomain string
	// ClusterDNS is the address at which every node answers for the cluster's names; the Service kube-system/kube-dns has
	// it, so that no other Service gets it. The zero value makes no such Service.
	ClusterDNS netip.Addr
	// IngressClass, if set, is the name of Balsa's IngressClass, which is created if there is none of that name. It is the
	// default class.
	IngressClass string
	// ClientCAs are authorities whose clients are accepted in addition to the cluster's CA. The caller runs it. Nil: there
	// are none.
	ClientCAs *pki.Trust
	// RefuseClient returns an error for a valid certificate of the cluster's CA that was revoked; nil refuses none.
	RefuseClient func(*x509.Certificate) error
	// Authentication and Authorization are an administrator's additions to, or replacements of, the defaults.
	Authentication authn.Settings
	Authorization  authz.Settings
	// Encryption configures encryption at rest. All servers of a cluster need the same. The zero value encrypts nothing.
	Encryption encryption.Settings
	// Audit configures the audit log. Nil records nothing.
	Audit *audit.Settings
	// Dial connects to pods and Services, for webhooks and aggregated APIs. Nil: Tunnel connects or, without one, the server
	// dials directly.
	Dial DialFunc
	// Tunnel connects to nodes and their pods, also through connections that the nodes have opened. Nil: Dial connects to
	// nodes.
	Tunnel *tunnel.Tunnel
	// ResourceMetrics has the nodes' reports of resource usage, for metrics.k8s.io. Nil: there are no reports.
	ResourceMetrics *resourcemetrics.Reports
	// MaxReads plus MaxWrites is the number of seats that priority and fairness assigns to requests of network clients; a
	// watch has a seat only while it begins. Defaults 400 and 200, as kube-apiserver's.
	MaxReads, MaxWrites int
	// MaxStreams bounds the watches and streams that one user holds from one address. Default 4000.
	MaxStreams int
	// RequestTimeout bounds every request that is not a watch or a stream. Default 1 minute.
	RequestTimeout time.Duration
	// TolerationSeconds is how long pods without their own tolerations stay on a node that is not ready or unreachable
	// before they are evicted. Nil is 300, like upstream's --default-unreachable-toleration-seconds.
	TolerationSeconds *int64
	// Admission selects further admission plugins and configures all of them.
	Admission admission.Settings
	// CheckNodeIPs returns why a node may not report these addresses as its own in its Node; nil allows all.
	CheckNodeIPs func(node string, ips []net.IP) error
	// PodPresets serves settings.k8s.io/v1alpha1 PodPresets and merges them into new pods. All servers of a cluster should
	// agree, because each server merges only into the pods that are created through it.
	PodPresets bool
	// Initializers serves admissionregistration.k8s.io/v1alpha1 InitializerConfigurations and lets the programs they name
	// finish new objects before others see them. All servers of a cluster should agree, because a server without it shows
	// uninitialized objects.
	Initializers bool
	// LegacyAPIs accepts API versions that Kubernetes has removed (legacy/apis has the table), and stores their objects as the
	// versions of today. All servers of a cluster should agree.
	LegacyAPIs bool
	// InitializerPatience is how long a creation waits for them. Default 30 seconds.
	InitializerPatience time.Duration
	// Settings are the values of this server's flags by name. /flagz shows them to authorized users, so they must hold no
	// secrets. Nil: there is no /flagz.
	Settings map[string]string
	// Debug serves what the process tells of itself, by path, to callers that authorization allows the path.
	Debug map[string]http.Handler
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// DialFunc connects to an address of a node or pod.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("control: "+format, args...))
		}
	}
	fault(c.Store == nil, "Config.Store must be set")
	fault(c.Listener != nil && c.Secure != nil, "only one of Listener and Secure may be set")
	fault(c.PKI == nil, "Config.PKI must be set")
	fault(!c.AdvertiseAddress.IsValid(), "Config.AdvertiseAddress must be set")
	a := c.AdvertiseAddress.Unmap()
	fault(a.IsValid() && (a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast()),
		"AdvertiseAddress %s cannot be an endpoint: pods and other hosts do not reach it", a)
	fault(c.AdvertisePort < 0 || c.AdvertisePort > 65535, "AdvertisePort %d is no port", c.AdvertisePort)
	for name, p := range map[string]netip.Prefix{"ServiceCIDR": c.ServiceCIDR, "SecondServiceCIDR": c.SecondServiceCIDR} {
		if p.IsValid() {
			fault(p != p.Masked(), "%s %s has host bits set; did you mean %s?", name, p, p.Masked())
			fault(p.Addr().BitLen()-p.Bits() < 3, "%s %s holds fewer than 8 addresses", name, p)
		}
	}
	if c.SecondServiceCIDR.IsValid() {
		fault(!c.ServiceCIDR.IsValid(), "SecondServiceCIDR %s needs a ServiceCIDR of the other family", c.SecondServiceCIDR)
		fault(c.ServiceCIDR.Addr().Is4() == c.SecondServiceCIDR.Addr().Is4(), "ServiceCIDR %s and SecondServiceCIDR %s are of one family", c.ServiceCIDR, c.SecondServiceCIDR)
	}
	fault(c.ClusterDNS.IsValid() && c.ServiceCIDR.IsValid() && !c.ServiceCIDR.Contains(c.ClusterDNS) && !c.SecondServiceCIDR.Contains(c.ClusterDNS),
		"ClusterDNS %s is outside ServiceCIDR %s", c.ClusterDNS, c.ServiceCIDR)
	fault(c.MaxReads < 0 || c.MaxWrites < 0 || c.MaxStreams < 0, "MaxReads, MaxWrites and MaxStreams must not be negative")
	fault(c.TolerationSeconds != nil && *c.TolerationSeconds < 0, "TolerationSeconds must not be negative")
	fault(c.InitializerPatience < 0, "InitializerPatience must not be negative")
	fault(c.RequestTimeout < 0, "RequestTimeout must not be negative")
	return errors.Join(append(errs, c.Authentication.Validate(), c.Authorization.Validate(), c.Encryption.Validate(), audit.Check(c.Audit))...)
}

func (c Config) withDefaults() Config {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.MaxReads, 400)
	set(&c.MaxWrites, 200)
	set(&c.MaxStreams, 4000)
	if l := cmp.Or(c.Listener, c.Secure); c.AdvertisePort == 0 && l != nil {
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			c.AdvertisePort = a.Port
		}
	}
	set(&c.AdvertisePort, 6443)
	if !c.ServiceCIDR.IsValid() {
		c.ServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	}
	if c.ResourceMetrics == nil {
		c.ResourceMetrics = resourcemetrics.NewReports()
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// serviceIP is the address of the kubernetes Service.
func (c Config) serviceIP() netip.Addr { return c.ServiceCIDR.Addr().Next() }

// serviceCIDRs are the networks of Services, that of the primary family first.
func (c Config) serviceCIDRs() []netip.Prefix {
	if c.SecondServiceCIDR.IsValid() {
		return []netip.Prefix{c.ServiceCIDR, c.SecondServiceCIDR}
	}
	return []netip.Prefix{c.ServiceCIDR}
}

// serviceNets are serviceCIDRs as the net package has them.
func (c Config) serviceNets() (list []*net.IPNet) {
	for _, p := range c.serviceCIDRs() {
		list = append(list, &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
	}
	return list
}
