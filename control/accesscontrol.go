package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"

	"github.com/balsahq/balsa/control/auth/admission"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/auth/authz"
	"github.com/balsahq/balsa/control/auth/listers"
	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/control/resourcemetrics"
	"github.com/balsahq/balsa/control/rest"
	"github.com/balsahq/balsa/raftstore"
)

// accessControl is what stands between a request and the registries.
type accessControl struct {
	live      *listers.Store
	authn     *authn.Authenticators
	authz     *authz.Authorizers
	admission *admission.Chain
	services  serviceResolver
}

// serviceResolver finds the Service a webhook names.
type serviceResolver struct{ lister corelisters.ServiceLister }

// ResolveEndpoint implements webhook.ServiceResolver.
func (s serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(s.lister, namespace, name, port)
}

func newAccessControl(s *Server) (*accessControl, error) {
	g := &accessControl{}
	if s.cfg.Dial == nil && s.cfg.Tunnel != nil {
		s.cfg.Dial = s.dial
	}
	var err error
	g.live, err = listers.New(listers.Config{
		Snapshot:    func() listers.Snapshot { return snapshot{s.cfg.Store.View()} },
		Transformer: s.encryption.For, Hidden: s.uninitializedFilter(),
		Confirm: func(ctx context.Context) error {
			_, err := s.cfg.Store.Barrier(ctx)
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	issuer := "https://kubernetes.default.svc." + s.cfg.ClusterDomain
	ways := authn.Config{
		Live: g.live, ClientVerify: s.cfg.PKI.ClientVerifyOptions, FrontProxyVerify: s.cfg.PKI.FrontProxyVerifyOptions,
		ServiceAccountKeys: s.cfg.PKI, Issuer: issuer, Settings: s.cfg.Authentication,
		SecretsWriter: s.client.CoreV1(), ExternalAddress: s.address(), Refuse: s.cfg.RefuseClient, Logger: s.log,
	}
	if s.cfg.ClientCAs != nil {
		ways.OtherClientVerify = s.cfg.ClientCAs.VerifyOptions
	}
	if g.authn, err = authn.New(ways); err != nil {
		return nil, err
	}
	if g.authz, err = authz.New(authz.Config{Live: g.live, Settings: s.cfg.Authorization, Logger: s.log}); err != nil {
		return nil, err
	}
	g.services = serviceResolver{corelisters.NewServiceLister(g.live.Fresh(schema.GroupResource{Resource: "services"}))}
	config := s.Client(Identity{User: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("dynamic client: %w", err)
	}
	g.admission, err = admission.New(admission.Config{
		Live: g.live, Client: s.client, Dynamic: dynamicClient, Authorizer: g.authz.Authorizer, RESTMapper: s.restMapper(),
		TolerationSeconds: s.cfg.TolerationSeconds, PodPresets: s.cfg.PodPresets, Dial: s.cfg.Dial, Initializers: s.cfg.Initializers,
		Settings: s.cfg.Admission, CheckNodeIPs: s.cfg.CheckNodeIPs,
	})
	return g, err
}

// restMapper knows kinds by discovery, which it asks when it is first used.
func (s *Server) restMapper() meta.RESTMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.client.Discovery()))
}

// buildKinds builds the registries and what is served beside them.
func (s *Server) buildKinds() (*kinds.Set, error) {
	resources, err := resolver.NewDiscoveryResourceResolver(s.client.Discovery())
	if err != nil {
		return nil, err
	}
	set, err := kinds.Build(kinds.Deps{
		RESTOptions: s.hideUninitialized(registryOptions(s.cfg.Store, s.encryption.For)), Authorizer: s.access.authz.Authorizer, Rules: s.access.authz.Rules,
		Resources: resources, Namespaces: s.client.CoreV1().Namespaces(),
	})
	if err != nil {
		return nil, err
	}
	s.addInitializers(set)
	pki := s.cfg.PKI
	err = rest.Install(rest.Config{
		Table: set, Store: s.cfg.Store, ServiceCIDRs: s.cfg.serviceNets(), MoreServiceCIDRs: s.readyServiceCIDRs, NodePorts: s.cfg.NodePorts, Transformer: s.encryption.For,
		Authorizer: s.access.authz.Authorizer, RuleResolver: s.access.authz.RuleResolver,
		Tokens: s.access.authn.Token, Issue: s.access.authn.Issue, Audiences: s.access.authn.Audiences,
		ClusterCA: pki.Pool, Dial: s.cfg.Dial, Nodes: s.nodes(),
		KubeletClient: func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return pki.KubeletClient().GetClientCertificate(r)
		},
		Health: map[string]func(context.Context) error{"store": func(context.Context) error { return s.cfg.Store.Err() }},
	})
	resourcemetrics.Install(set, s.cfg.ResourceMetrics, set.Store("", "nodes"), set.Store("", "pods"))
	return set, err
}

// snapshot shows a view of the store to listers.
type snapshot struct{ view *raftstore.View }

// Revision implements listers.Snapshot.
func (s snapshot) Revision() int64 { return s.view.Revision() }

// Get implements listers.Snapshot.
func (s snapshot) Get(key string) ([]byte, int64, bool) {
	kv := s.view.Get(key)
	if kv == nil {
		return nil, 0, false
	}
	return kv.Value, kv.ModRevision, true
}

// Scan implements listers.Snapshot.
func (s snapshot) Scan(prefix string, fn func(string, []byte, int64) bool) {
	s.view.Ascend(prefix, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool {
		return fn(kv.Key, kv.Value, kv.ModRevision)
	})
}
