package control

import (
	"context"
	"encoding/pem"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"github.com/balsahq/balsa/control/aggregation"
	"github.com/balsahq/balsa/control/kinds"
)

// newAggregation makes what passes requests on to other servers.
func (s *Server) newAggregation() (*aggregation.Aggregation, error) {
	client := s.Client(Identity{User: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	definitions, err := extensionsclient.NewForConfig(client)
	if err != nil {
		return nil, err
	}
	return aggregation.New(aggregation.Config{
		Client: client, Core: s.client, Builtin: s.builtinGroupVersions(), Definitions: s.allDefinitions, Discovery: s.discovery,
		Newest: func(ctx context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error) {
			list, err := definitions.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			out := make([]*apiextensionsv1.CustomResourceDefinition, len(list.Items))
			for i := range list.Items {
				out[i] = &list.Items[i]
			}
			return out, nil
		},
		Groups:      func() discovery.GroupManager { return s.generic.DiscoveryGroupManager },
		Certificate: s.cfg.PKI.FrontProxyClient(), Verify: s.cfg.PKI.FrontProxyVerifyOptions, Dial: s.cfg.Dial, Logger: s.log,
	})
}

// builtinGroupVersions are the groups and versions of the program.
func (s *Server) builtinGroupVersions() []schema.GroupVersion {
	out := []schema.GroupVersion{apiextensionsv1.SchemeGroupVersion}
	for _, group := range kinds.Groups {
		out = append(out, s.set.Versions(group)...)
	}
	return out
}

// publishTrust tells aggregated servers whom to believe, once there is a cluster.
func (s *Server) publishTrust(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.ready:
	}
	proxy := s.access.authn.FrontProxy
	return aggregation.Trust{
		ClientCA: s.clientCAs, Retired: s.cfg.PKI.Retired, Changed: s.cfg.PKI.Changed, ProxyCA: s.cfg.PKI.FrontProxyCA(), ProxyNames: proxy.ClientNames, UserHeaders: proxy.UserHeaders,
		UIDHeaders: proxy.UIDHeaders, GroupHeaders: proxy.GroupHeaders, ExtraPrefixes: proxy.ExtraPrefixes,
	}.Keep(ctx, s.client, s.log)
}

// clientCAs are the authorities, PEM, whose clients this server believes now.
func (s *Server) clientCAs() []byte {
	out := slices.Clone(s.cfg.PKI.CA())
	if s.cfg.ClientCAs != nil {
		for _, c := range s.cfg.ClientCAs.Certificates() {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
	}
	return out
}
