package control

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
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
	"github.com/balsahq/balsa/fault"
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
	beside    []schema.GroupVersion // what others serve in groups of the table
}

// install enters every group that has endpoints. It stands for genericapiserver's InstallAPIGroups, which would build
// the schemas of all groups here and now.
func (i *installer) install() error {
	// Registering routes compiles an expression for each: the longest single part of a start, so groups go in parallel.
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, group := range kinds.Groups {
		for n, gv := range i.set.Versions(group) {
			types := i.types(group)
			g.Go(fault.ContainedErr("control", func() error {
				if err := i.version(gv, group, n, types); err != nil {
					return fmt.Errorf("install %q: %w", gv, err)
				}
				return nil
			}))
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, group := range kinds.Groups {
		switch versions := i.set.Versions(group); {
		case len(versions) == 0:
		case group.Name == "":
			i.legacyRoot()
		default:
			i.groupRoot(slices.Concat(versions, i.besideOf(group)))
		}
	}
	return nil
}

// besideOf are the versions of a group that others serve.
func (i *installer) besideOf(group kinds.Group) []schema.GroupVersion {
	return slices.DeleteFunc(slices.Clone(i.beside), func(gv schema.GroupVersion) bool { return gv.Group != group.Name })
}

// types is the schema of a group, made when the first object of the group is written.
func (i *installer) types(group kinds.Group) *openapi.Types {
	return i.docs.Types(func() ([]string, error) { return i.typeNames(i.set.Versions(group)) })
}

func (i *installer) version(gv schema.GroupVersion, group kinds.Group, n int, types managedfields.TypeConverter) error {
	root, manager := genericapiserver.APIGroupPrefix, i.server.AggregatedDiscoveryGroupManager
	if group.Name == "" {
		root, manager = genericapiserver.DefaultLegacyAPIPrefix, i.server.AggregatedLegacyDiscoveryGroupManager
	}
	v := i.groupVersion(gv, i.set.Versions(group), types)
	v.Root = root
	resources, _, err := v.InstallREST(i.server.Handler.GoRestfulContainer)
	if err != nil {
		return err
	}
	manager.AddGroupVersion(group.Name, apidiscoveryv2.APIVersionDiscovery{
		Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Version: gv.Version, Resources: resources,
	})
	manager.SetGroupVersionPriority(metav1.GroupVersion(gv), group.Priority, 15-n)
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

// groupVersion is one group and version as the endpoint installer wants it.
func (i *installer) groupVersion(gv schema.GroupVersion, all []schema.GroupVersion, types managedfields.TypeConverter) *genericapi.APIGroupVersion {
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
		UnsafeConvertor:             apiruntime.UnsafeObjectConvertor(scheme),
		Defaulter:                   scheme,
		Typer:                       scheme,
		Namer:                       apiruntime.Namer(meta.NewAccessor()),
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
