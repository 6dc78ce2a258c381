package apis

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind is a kind of which an old version is accepted.
type kind struct {
	name, resource string
	short          []string
	cluster        bool // has no namespace
	sub            []string
}

var (
	deployments         = kind{name: "Deployment", resource: "deployments", short: []string{"deploy"}, sub: []string{"status", "scale"}}
	daemonSets          = kind{name: "DaemonSet", resource: "daemonsets", short: []string{"ds"}, sub: []string{"status"}}
	replicaSets         = kind{name: "ReplicaSet", resource: "replicasets", short: []string{"rs"}, sub: []string{"status", "scale"}}
	statefulSets        = kind{name: "StatefulSet", resource: "statefulsets", short: []string{"sts"}, sub: []string{"status", "scale"}}
	controllerRevisions = kind{name: "ControllerRevision", resource: "controllerrevisions"}
	ingresses           = kind{name: "Ingress", resource: "ingresses", short: []string{"ing"}, sub: []string{"status"}}
	ingressClasses      = kind{name: "IngressClass", resource: "ingressclasses", cluster: true}
	networkPolicies     = kind{name: "NetworkPolicy", resource: "networkpolicies", short: []string{"netpol"}}
	cronJobs            = kind{name: "CronJob", resource: "cronjobs", short: []string{"cj"}, sub: []string{"status"}}
	runtimeClasses      = kind{name: "RuntimeClass", resource: "runtimeclasses", cluster: true}
	roles               = kind{name: "Role", resource: "roles"}
	roleBindings        = kind{name: "RoleBinding", resource: "rolebindings"}
	clusterRoles        = kind{name: "ClusterRole", resource: "clusterroles", cluster: true}
	clusterRoleBindings = kind{name: "ClusterRoleBinding", resource: "clusterrolebindings", cluster: true}
	priorityClasses     = kind{name: "PriorityClass", resource: "priorityclasses", short: []string{"pc"}, cluster: true}
	disruptionBudgets   = kind{name: "PodDisruptionBudget", resource: "poddisruptionbudgets", short: []string{"pdb"}, sub: []string{"status"}}
	customResources     = kind{name: "CustomResourceDefinition", resource: "customresourcedefinitions", short: []string{"crd", "crds"}, cluster: true, sub: []string{"status"}}
)

// singular is the lower-case name of the kind.
func (k kind) singular() string { return strings.ToLower(k.name) }

// row says that the kinds of an old version are served by another one.
type row struct {
	old, served schema.GroupVersion
	kinds       []kind
}

var table = []row{
	{gv("extensions/v1beta1"), gv("apps/v1"), []kind{deployments, daemonSets, replicaSets}},
	{gv("extensions/v1beta1"), gv("networking.k8s.io/v1"), []kind{ingresses, networkPolicies}},
	{gv("apps/v1beta1"), gv("apps/v1"), []kind{deployments, statefulSets, controllerRevisions}},
	{gv("apps/v1beta2"), gv("apps/v1"), []kind{deployments, daemonSets, replicaSets, statefulSets, controllerRevisions}},
	{gv("batch/v1beta1"), gv("batch/v1"), []kind{cronJobs}},
	{gv("batch/v2alpha1"), gv("batch/v1"), []kind{cronJobs}},
	{gv("networking.k8s.io/v1beta1"), gv("networking.k8s.io/v1"), []kind{ingresses, ingressClasses}},
	{gv("node.k8s.io/v1beta1"), gv("node.k8s.io/v1"), []kind{runtimeClasses}},
	{gv("rbac.authorization.k8s.io/v1beta1"), gv("rbac.authorization.k8s.io/v1"), []kind{roles, roleBindings, clusterRoles, clusterRoleBindings}},
	{gv("scheduling.k8s.io/v1beta1"), gv("scheduling.k8s.io/v1"), []kind{priorityClasses}},
	{gv("policy/v1beta1"), gv("policy/v1"), []kind{disruptionBudgets}},
	{gv("apiextensions.k8s.io/v1beta1"), gv("apiextensions.k8s.io/v1"), []kind{customResources}},
}

// gv reads a constant of the table.
func gv(text string) schema.GroupVersion {
	group, version, _ := strings.Cut(text, "/")
	return schema.GroupVersion{Group: group, Version: version}
}

// mapping is how requests for one old kind are served.
type mapping struct {
	old, served schema.GroupVersion
	kind        kind
}

// find returns the mapping of an old resource, or nil.
func find(old schema.GroupVersion, resource string) *mapping {
	for _, r := range table {
		if r.old != old {
			continue
		}
		for _, k := range r.kinds {
			if k.resource == resource {
				return &mapping{old: old, served: r.served, kind: k}
			}
		}
	}
	return nil
}

// Versions returns the old versions, in the order of the table.
func Versions() (list []schema.GroupVersion) {
	for _, r := range table {
		if !slices.Contains(list, r.old) {
			list = append(list, r.old)
		}
	}
	return list
}

// split returns the version, the resource and the subresource of an API path, and the part behind the version.
func split(path string) (old schema.GroupVersion, resource, sub, rest string) {
	below, ok := strings.CutPrefix(path, "/apis/")
	if !ok {
		return old, "", "", ""
	}
	parts := strings.Split(below, "/")
	if len(parts) < 3 {
		return old, "", "", ""
	}
	old = schema.GroupVersion{Group: parts[0], Version: parts[1]}
	rest = strings.TrimPrefix(below, old.Group+"/"+old.Version)
	parts = parts[2:]
	if parts[0] == "watch" {
		parts = parts[1:]
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) == 0 {
		return old, "", "", ""
	}
	if len(parts) > 2 {
		sub = parts[2]
	}
	return old, parts[0], sub, rest
}
