package control

import (
	"fmt"
	"slices"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	aggregated "k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/control/openapi"
)

// minWatch is how long a watch lives at least when its client does not say; upstream's figure.
const minWatch = 30 * time.Minute

// maxBody bounds a request's body, in bytes; upstream's figure.
const maxBody = 3 << 20

// installer enters the table's groups into the generic server.
type installer struct {
	server    *genericapiserver.GenericAPIServer
	set       *kinds.Set
	docs      *openapi.Documents
	admission admission.Interface
	addresses discovery.Addresses
}

// install enters every group that has endpoints. It stands for genericapiserver's InstallAPIGroups, which would build
// the schemas of all groups here and now.
func (i *installer) install() error {
	for _, group := range kinds.Groups {
		versions := i.set.Versions(group)
		if len(versions) == 0 {
			continue
		}
		if err := i.group(group, versions); err != nil {
			return fmt.Errorf("install group %q: %w", group.Name, err)
		}
	}
	return nil
}

func (i *installer) group(group kinds.Group, versions []schema.GroupVersion) error {
	root, manager := genericapiserver.APIGroupPrefix, i.server.AggregatedDiscoveryGroupManager
	if group.Name == "" {
		root, manager = genericapiserver.DefaultLegacyAPIPrefix, i.server.AggregatedLegacyDiscoveryGroupManager
	}
	types := i.docs.Types(func() ([]string, error) { return i.typeNames(versions) })
	for n, gv := range versions {
		v := i.version(gv, versions, types)
		v.Root = root
		resources, _, err := v.InstallREST(i.server.Handler.GoRestfulContainer)
		if err != nil {
			return err
		}
		manager.AddGroupVersion(group.Name, apidiscoveryv2.APIVersionDiscovery{
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Version: gv.Version, Resources: resources,
		})
		manager.SetGroupVersionPriority(metav1.GroupVersion(gv), group.Priority, 15-n)
	}
	if group.Name == "" {
		i.legacyRoot()
		return nil
	}
	i.groupRoot(versions)
	return nil
}

// legacyRoot serves /api.
func (i *installer) legacyRoot() {
	manager := i.server.AggregatedLegacyDiscoveryGroupManager
	root := discovery.NewLegacyRootAPIHandler(i.addresses, codecs, genericapiserver.DefaultLegacyAPIPrefix)
	wrapped := aggregated.WrapAggregatedDiscoveryToHandler(root, manager, manager)
	i.server.Handler.GoRestfulContainer.Add(wrapped.GenerateWebService(genericapiserver.DefaultLegacyAPIPrefix, metav1.APIVersions{}))
}

// groupRoot serves /apis/GROUP and enters the group into /apis.
func (i *installer) groupRoot(versions []schema.GroupVersion) {
	group := metav1.APIGroup{Name: versions[0].Group}
	for _, gv := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
	}
	group.PreferredVersion = group.Versions[0]
	i.server.DiscoveryGroupManager.AddGroup(group)
	i.server.Handler.GoRestfulContainer.Add(discovery.NewAPIGroupHandler(codecs, group).WebService())
}

// version is one group and version as the endpoint installer wants it.
func (i *installer) version(gv schema.GroupVersion, all []schema.GroupVersion, types managedfields.TypeConverter) *genericapi.APIGroupVersion {
	scheme := legacyscheme.Scheme
	everywhere := map[string][]string{}
	for _, v := range all {
		for path := range i.set.Served(v) {
			everywhere[path] = append(everywhere[path], v.String())
		}
	}
	return &genericapi.APIGroupVersion{
		Storage:                     i.set.Served(gv),
		GroupVersion:                gv,
		AllServedVersionsByResource: everywhere,
		OptionsExternalVersion:      &schema.GroupVersion{Version: "v1"},
		ParameterCodec:              legacyscheme.ParameterCodec,
		Serializer:                  codecs,
		Creater:                     scheme,
		Convertor:                   scheme,
		ConvertabilityChecker:       scheme,
		UnsafeConvertor:             runtime.UnsafeObjectConvertor(scheme),
		Defaulter:                   scheme,
		Typer:                       scheme,
		Namer:                       runtime.Namer(meta.NewAccessor()),
		EquivalentResourceRegistry:  i.server.EquivalentResourceRegistry,
		Admit:                       i.admission,
		MinRequestTimeout:           minWatch,
		Authorizer:                  i.server.Authorizer,
		TypeConverter:               types,
		MaxRequestBodyBytes:         maxBody,
	}
}

// typeNames are the Go types behind the endpoints of some versions, as OpenAPI names them.
func (i *installer) typeNames(versions []schema.GroupVersion) ([]string, error) {
	var names []string
	for _, gv := range versions {
		for path, storage := range i.set.Served(gv) {
			kind, err := genericapi.GetResourceKind(gv, storage, legacyscheme.Scheme)
			if err != nil {
				return nil, fmt.Errorf("kind of %s in %s: %w", path, gv, err)
			}
			object, err := legacyscheme.Scheme.New(kind)
			if err != nil {
				return nil, err
			}
			names = append(names, openapiutil.GetCanonicalTypeName(object))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
