package rest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	"k8s.io/kubernetes/pkg/registry/authorization/localsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/authorization/subjectaccessreview"
	coreservice "k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/balsahq/balsa/raftstore"
)

// Table is the part of the table of kinds that this package uses; kinds.Set implements it.
type Table interface {
	// Store returns a kind's registry, nil when the kind is not served.
	Store(group, resource string) *genericregistry.Store
	// View returns the registry of a subresource, nil when there is none.
	View(group, resource, name string) *genericregistry.Store
	// Add adds or replaces an endpoint; path is "resource" or "resource/subresource".
	Add(gv schema.GroupVersion, path string, storage rest.Storage)
}

// Config configures the endpoints.
type Config struct {
	Table Table
	// Store holds the claims of Services' addresses.
	Store *raftstore.Store
	// Transformer returns the transformer of a resource's stored values, for objects that are written beside others;
	// nil: none.
	Transformer func(schema.GroupResource) value.Transformer
	// ServiceCIDRs are the networks of cluster IPs: one, or one of each family. Services that name no family use the
	// first. NodePorts defaults to 30000-32767.
	ServiceCIDRs []*net.IPNet
	// MoreServiceCIDRs returns the networks of the ready ServiceCIDR objects, in the order in which they are used once
	// ServiceCIDRs are full. It may return networks of ServiceCIDRs too. nil: there are none.
	MoreServiceCIDRs func() []*net.IPNet
	NodePorts        PortRange

	Authorizer   authorizer.Authorizer
	RuleResolver authorizer.RuleResolver
	// Tokens verifies bearer tokens for TokenReview. Issue makes the tokens of serviceaccounts/token.
	Tokens    authenticator.Token
	Issue     serviceaccount.TokenGenerator
	Audiences authenticator.Audiences

	// ClusterCA returns the CAs that verify kubelets, at each handshake. KubeletClient is the API server's client
	// certificate for them.
	ClusterCA     func() *x509.CertPool
	KubeletClient func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// Dial connects to nodes and pods if Nodes is nil; default net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Nodes connects to nodes and pods if there is more than one way to them.
	Nodes Nodes
	// Health holds a check for each component of this process, for componentstatuses; may be nil.
	Health map[string]func(context.Context) error
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	for name, missing := range map[string]bool{
		"Table": c.Table == nil, "Store": c.Store == nil, "ServiceCIDRs": len(c.ServiceCIDRs) == 0, "Authorizer": c.Authorizer == nil,
		"RuleResolver": c.RuleResolver == nil, "Tokens": c.Tokens == nil, "Issue": c.Issue == nil, "ClusterCA": c.ClusterCA == nil,
		"KubeletClient": c.KubeletClient == nil,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("rest: Config.%s must be set", name))
		}
	}
	if len(c.ServiceCIDRs) > 2 || len(c.ServiceCIDRs) == 2 && (block{c.ServiceCIDRs[0]}).family() == (block{c.ServiceCIDRs[1]}).family() {
		errs = append(errs, fmt.Errorf("rest: ServiceCIDRs are %v, want one network, or one of each family", c.ServiceCIDRs))
	}
	if c.NodePorts != (PortRange{}) && (c.NodePorts.First < 1 || c.NodePorts.Last > 65535 || c.NodePorts.First > c.NodePorts.Last) {
		errs = append(errs, fmt.Errorf("rest: NodePorts %v is not a valid range of ports", c.NodePorts))
	}
	return errors.Join(errs...)
}

var (
	coreV1  = schema.GroupVersion{Version: "v1"}
	appsV1  = schema.GroupVersion{Group: "apps", Version: "v1"}
	authnV1 = schema.GroupVersion{Group: "authentication.k8s.io", Version: "v1"}
	authzV1 = schema.GroupVersion{Group: "authorization.k8s.io", Version: "v1"}
)

// Install adds the endpoints of every kind that the table has.
func Install(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.NodePorts == (PortRange{}) {
		cfg.NodePorts = PortRange{30000, 32767}
	}
	nodes := cfg.Table.Store("", "nodes")
	reach := newNodeTransports(nodes, cfg)
	installPods(cfg, reach)
	installServices(cfg, reach)
	installScales(cfg.Table)
	if nodes != nil {
		cfg.Table.Add(coreV1, "nodes/proxy", nodeProxy(nodes, reach))
	}
	if accounts := cfg.Table.Store("", "serviceaccounts"); accounts != nil {
		cfg.Table.Add(coreV1, "serviceaccounts/token", newTokens(cfg, accounts))
	}
	cfg.Table.Add(coreV1, "componentstatuses", newComponents(cfg.Health))
	installReviews(cfg)
	return nil
}

func installPods(cfg Config, reach *nodeTransports) {
	pods := cfg.Table.Store("", "pods")
	if pods == nil {
		return
	}
	binding := &Binding{pods: pods}
	add := func(path string, s rest.Storage) { cfg.Table.Add(coreV1, path, s) }
	add("pods/binding", binding)
	add("bindings", &LegacyBinding{binding})
	add("pods/eviction", newEviction(cfg.Table))
	add("pods/log", &Log{pods: pods, reach: reach})
	add("pods/proxy", podProxy(pods, reach))
	for name, s := range podStreams(pods, reach, cfg.Authorizer) {
		add("pods/"+name, s)
	}
}

func installServices(cfg Config, reach *nodeTransports) {
	services := cfg.Table.Store("", "services")
	if services == nil {
		return
	}
	s := newServices(cfg, services)
	cfg.Table.Add(coreV1, "services", s)
	cfg.Table.Add(coreV1, "services/proxy", &coreservice.ProxyREST{
		Redirector:     &redirector{services: services, endpoints: cfg.Table.Store("", "endpoints"), pods: cfg.Table.Store("", "pods"), reach: reach},
		ProxyTransport: reach.forNode("").plain,
	})
}

func installReviews(cfg Config) {
	tokens := bearertoken.New(cfg.Tokens)
	cfg.Table.Add(authnV1, "tokenreviews", tokenreview.NewREST(tokens, cfg.Audiences))
	cfg.Table.Add(authnV1, "selfsubjectreviews", selfsubjectreview.NewREST())
	cfg.Table.Add(authzV1, "subjectaccessreviews", subjectaccessreview.NewREST(cfg.Authorizer))
	cfg.Table.Add(authzV1, "selfsubjectaccessreviews", selfsubjectaccessreview.NewREST(cfg.Authorizer))
	cfg.Table.Add(authzV1, "localsubjectaccessreviews", localsubjectaccessreview.NewREST(cfg.Authorizer))
	cfg.Table.Add(authzV1, "selfsubjectrulesreviews", selfsubjectrulesreview.NewREST(cfg.RuleResolver))
}
