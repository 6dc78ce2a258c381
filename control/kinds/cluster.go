package kinds

import (
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	noderuntime "k8s.io/kubernetes/pkg/apis/node"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	csr "k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
)

func rbacRows() []Row {
	return []Row{{
		Group: rbac.GroupName, Resource: "clusterroles", Singular: "clusterrole", PlainColumns: true,
		Types: typesOf[rbac.ClusterRole, rbac.ClusterRoleList](), Strategy: clusterrole.Strategy, Wrap: wrapClusterRoles,
	}, {
		Group: rbac.GroupName, Resource: "clusterrolebindings", Singular: "clusterrolebinding",
		Types: typesOf[rbac.ClusterRoleBinding, rbac.ClusterRoleBindingList](), Strategy: clusterrolebinding.Strategy,
		Wrap: wrapClusterRoleBindings,
	}, {
		Group: rbac.GroupName, Resource: "roles", Singular: "role", PlainColumns: true,
		Types: typesOf[rbac.Role, rbac.RoleList](), Strategy: role.Strategy, Wrap: wrapRoles,
	}, {
		Group: rbac.GroupName, Resource: "rolebindings", Singular: "rolebinding",
		Types: typesOf[rbac.RoleBinding, rbac.RoleBindingList](), Strategy: rolebinding.Strategy, Wrap: wrapRoleBindings,
	}}
}

func clusterRows() []Row {
	return []Row{{
		Group: scheduling.GroupName, Resource: "priorityclasses", Singular: "priorityclass", Short: []string{"pc"},
		Types: typesOf[scheduling.PriorityClass, scheduling.PriorityClassList](), Strategy: priorityclass.Strategy,
	}, {
		Group: coordination.GroupName, Resource: "leases", Singular: "lease",
		Types: typesOf[coordination.Lease, coordination.LeaseList](), Strategy: lease.Strategy,
	}, {
		Group: noderuntime.GroupName, Resource: "runtimeclasses", Singular: "runtimeclass",
		Types: typesOf[noderuntime.RuntimeClass, noderuntime.RuntimeClassList](), Strategy: runtimeclass.Strategy,
	}, {
		Group: certificates.GroupName, Resource: "certificatesigningrequests", Singular: "certificatesigningrequest", Short: []string{"csr"},
		Types:    typesOf[certificates.CertificateSigningRequest, certificates.CertificateSigningRequestList](),
		Strategy: csr.Strategy, Attrs: csr.GetAttrs,
		Views: map[string]rest.RESTUpdateStrategy{"status": csr.StatusStrategy, "approval": csr.ApprovalStrategy},
	}, {
		Group: flowcontrol.GroupName, Resource: "flowschemas", Singular: "flowschema",
		Types: typesOf[flowcontrol.FlowSchema, flowcontrol.FlowSchemaList](), Strategy: flowschema.Strategy,
		Views: status(flowschema.StatusStrategy),
	}, {
		Group: flowcontrol.GroupName, Resource: "prioritylevelconfigurations", Singular: "prioritylevelconfiguration",
		Types:    typesOf[flowcontrol.PriorityLevelConfiguration, flowcontrol.PriorityLevelConfigurationList](),
		Strategy: prioritylevelconfiguration.Strategy, Views: status(prioritylevelconfiguration.StatusStrategy),
	}}
}
