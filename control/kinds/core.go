package kinds

import (
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
)

// eventTTL is how long an Event is kept after its last write, in seconds.
const eventTTL = 3600

func coreRows() []Row {
	return []Row{{
		Resource: "pods", Singular: "pod", Short: []string{"po"}, Category: "all",
		Types: typesOf[api.Pod, api.PodList](), Strategy: pod.Strategy,
		Views: map[string]rest.RESTUpdateStrategy{
			"status": pod.StatusStrategy, "ephemeralcontainers": pod.EphemeralContainersStrategy, "resize": pod.ResizeStrategy,
		},
		Attrs: pod.GetAttrs, Triggers: storage.IndexerFuncs{"spec.nodeName": pod.NodeNameTriggerFunc}, Indexers: pod.Indexers,
		ReturnDeleted: true, Wrap: wrapPods,
	}, {
		Resource: "namespaces", Singular: "namespace", Short: []string{"ns"},
		Types: typesOf[api.Namespace, api.NamespaceList](), Strategy: namespace.Strategy,
		Views:     map[string]rest.RESTUpdateStrategy{"status": namespace.StatusStrategy, "finalize": namespace.FinalizeStrategy},
		WriteOnly: "finalize",
		Attrs:     namespace.GetAttrs, ReturnDeleted: true, Hook: namespaceHook, Wrap: wrapNamespaces,
	}, {
		Resource: "nodes", Singular: "node", Short: []string{"no"},
		Types: typesOf[api.Node, api.NodeList](), Strategy: node.Strategy, Views: status(node.StatusStrategy), Attrs: node.GetAttrs,
	}, {
		Resource: "services", Singular: "service", Short: []string{"svc"}, Category: "all",
		Types: typesOf[api.Service, api.ServiceList](), Strategy: service.Strategy, Views: status(service.StatusStrategy),
		Attrs: service.GetAttrs, ReturnDeleted: true,
	}, {
		Resource: "endpoints", Singular: "endpoints", Short: []string{"ep"},
		Types: typesOf[api.Endpoints, api.EndpointsList](), Strategy: endpoint.Strategy,
	}, {
		Resource: "configmaps", Singular: "configmap", Short: []string{"cm"},
		Types: typesOf[api.ConfigMap, api.ConfigMapList](), Strategy: configmap.Strategy, Attrs: configmap.GetAttrs,
	}, {
		Resource: "secrets", Singular: "secret",
		Types: typesOf[api.Secret, api.SecretList](), Strategy: secret.Strategy, Attrs: secret.GetAttrs,
	}, {
		Resource: "serviceaccounts", Singular: "serviceaccount", Short: []string{"sa"},
		Types: typesOf[api.ServiceAccount, api.ServiceAccountList](), Strategy: serviceaccount.Strategy, ReturnDeleted: true,
	}, {
		Resource: "events", Singular: "event", Short: []string{"ev"},
		Types: typesOf[api.Event, api.EventList](), Strategy: event.Strategy, Attrs: event.GetAttrs, TTL: eventTTL,
		AlsoIn: map[string][]string{"events.k8s.io": {"v1"}},
	}, {
		Resource: "limitranges", Singular: "limitrange", Short: []string{"limits"},
		Types: typesOf[api.LimitRange, api.LimitRangeList](), Strategy: limitrange.Strategy, PlainColumns: true,
	}, {
		Resource: "resourcequotas", Singular: "resourcequota", Short: []string{"quota"},
		Types: typesOf[api.ResourceQuota, api.ResourceQuotaList](), Strategy: resourcequota.Strategy,
		Views: status(resourcequota.StatusStrategy), ReturnDeleted: true,
	}, {
		Resource: "podtemplates", Singular: "podtemplate",
		Types: typesOf[api.PodTemplate, api.PodTemplateList](), Strategy: podtemplate.Strategy, ReturnDeleted: true,
	}, {
		Resource: "replicationcontrollers", Singular: "replicationcontroller", Short: []string{"rc"}, Category: "all",
		Types: typesOf[api.ReplicationController, api.ReplicationControllerList](), Strategy: replicationcontroller.Strategy,
		Views: status(replicationcontroller.StatusStrategy), Attrs: replicationcontroller.GetAttrs,
	}}
}
