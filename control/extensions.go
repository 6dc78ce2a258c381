package control

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/version"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/control/storage"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
)

// extensionsPriority orders apiextensions.k8s.io in discovery; kube-apiserver's number.
const extensionsPriority = 16700

// newExtensions makes the server of CustomResourceDefinitions and of the resources they define. It stands behind the
// main one: what that does not know falls through to it, already authenticated and authorized.
func (s *Server) newExtensions() (*extensions.CustomResourceDefinitions, error) {
	c := s.genericConfig()
	c.MergedResourceConfig = extensions.DefaultAPIResourceConfigSource()
	c.Serializer = extensions.Codecs
	c.RESTOptionsGetter = storage.RESTOptions(storage.RESTConfig{
		Store: s.cfg.Store, Prefix: keyPrefix, Codec: extensions.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion),
		Stored: apiextensionsv1.SchemeGroupVersion, Transformer: s.encryption.For,
	})
	// The schema of CustomResourceDefinitions alone; small, and wanted by the handler from the start.
	namer := apiopenapi.NewDefinitionNamer(extensions.Scheme)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(extensionsopenapi.GetOpenAPIDefinitions, namer)
	// Readiness is told by settle, which waits for the informer itself.
	c.DisabledPostStartHooks.Insert("crd-informer-synced")
	config := extensions.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: *c},
		ExtraConfig: extensions.ExtraConfig{
			CRDRESTOptionsGetter: s.hideUninitialized(storage.RESTOptions(storage.RESTConfig{
				Store: s.cfg.Store, Prefix: keyPrefix, Codec: unstructured.UnstructuredJSONScheme, Transformer: s.encryption.For,
			})),
			MasterCount:         1,
			ServiceResolver:     s.access.services,
			AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(&http.Transport{DialContext: s.cfg.Dial}, nil, c.LoopbackClientConfig, nil),
		},
	}
	return config.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(http.NotFoundHandler()))
}

// allDefinitions are the CustomResourceDefinitions, in no order.
func (s *Server) allDefinitions() (out []*apiextensionsv1.CustomResourceDefinition) {
	for _, o := range s.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().GetStore().List() {
		if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			out = append(out, crd)
		}
	}
	return out
}

// definitions are the established CustomResourceDefinitions.
func (s *Server) definitions() []*apiextensionsv1.CustomResourceDefinition {
	out := slices.DeleteFunc(s.allDefinitions(), func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
	slices.SortFunc(out, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// followGroups enters the groups of custom resources into the plain answer of /apis, for clients that do not ask for
// the aggregated one.
func (s *Server) followGroups() error {
	gv := apiextensionsv1.SchemeGroupVersion
	shown := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	group := metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{shown}, PreferredVersion: shown}
	for _, old := range s.oldVersions() {
		if old.Group == gv.Group {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: old.String(), Version: old.Version})
		}
	}
	s.generic.DiscoveryGroupManager.AddGroup(group)
	s.discovery.SetGroupVersionPriority(metav1.GroupVersion(gv), extensionsPriority, 15)
	informer := s.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer()
	changed := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			fault.Point("control/extensions")
			s.refreshGroup(crd.Spec.Group)
			s.aggregation.Look()
		}
	}
	_, err := informer.AddEventHandler(eventhandler.Contain("control/extensions", cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(_, o any) { changed(o) },
	}))
	return err
}

func (s *Server) refreshGroup(name string) {
	if slices.ContainsFunc(kinds.Groups, func(g kinds.Group) bool { return g.Name == name }) {
		return // built in; see servedBeside
	}
	var versions []string
	for _, crd := range s.definitions() {
		if crd.Spec.Group != name {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Served && !slices.Contains(versions, v.Name) {
				versions = append(versions, v.Name)
			}
		}
	}
	if len(versions) == 0 {
		s.generic.DiscoveryGroupManager.RemoveGroup(name)
		return
	}
	slices.SortFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	group := metav1.APIGroup{Name: name}
	for _, v := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + v, Version: v})
	}
	group.PreferredVersion = group.Versions[0]
	s.generic.DiscoveryGroupManager.AddGroup(group)
}
