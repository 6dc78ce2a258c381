package apis

import (
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	verbs    = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	subVerbs = []string{"get", "patch", "update"}
)

// Resources returns what /apis/GROUP/VERSION says of an old version.
func Resources(version schema.GroupVersion) (list []metav1.APIResource) {
	for _, r := range table {
		if r.old != version {
			continue
		}
		for _, k := range r.kinds {
			list = append(list, metav1.APIResource{Name: k.resource, SingularName: k.singular(), Kind: k.name, Namespaced: !k.cluster, ShortNames: k.short, Verbs: verbs})
			for _, sub := range k.sub {
				is := k.subKind(version, sub)
				shown := metav1.APIResource{Name: k.resource + "/" + sub, Kind: is.Kind, Namespaced: !k.cluster, Verbs: subVerbs}
				if is.Group != version.Group || is.Version != version.Version {
					shown.Group, shown.Version = is.Group, is.Version
				}
				list = append(list, shown)
			}
		}
	}
	return list
}

// Discovery returns what the aggregated discovery says of an old version.
func Discovery(version schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery {
	shown := apidiscoveryv2.APIVersionDiscovery{Version: version.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, r := range table {
		if r.old != version {
			continue
		}
		for _, k := range r.kinds {
			resource := apidiscoveryv2.APIResourceDiscovery{
				Resource: k.resource, SingularResource: k.singular(), ShortNames: k.short, Verbs: verbs, Scope: apidiscoveryv2.ScopeNamespace,
				ResponseKind: responseKind(version.WithKind(k.name)),
			}
			if k.cluster {
				resource.Scope = apidiscoveryv2.ScopeCluster
			}
			for _, sub := range k.sub {
				resource.Subresources = append(resource.Subresources, apidiscoveryv2.APISubresourceDiscovery{
					Subresource: sub, Verbs: subVerbs, ResponseKind: responseKind(k.subKind(version, sub)),
				})
			}
			shown.Resources = append(shown.Resources, resource)
		}
	}
	return shown
}

func responseKind(k schema.GroupVersionKind) *metav1.GroupVersionKind {
	return &metav1.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}

// subKind is the kind of a subresource.
func (k kind) subKind(version schema.GroupVersion, sub string) schema.GroupVersionKind {
	if sub == "scale" {
		return schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	}
	return version.WithKind(k.name)
}
