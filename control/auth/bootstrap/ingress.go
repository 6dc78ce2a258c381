package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// ingress lets nodes read the objects that they serve to the outside. It does not include Secrets with certificates:
// the node authorizer allows those that an Ingress or a Gateway names, one by one.
func ingress() (rbacv1.ClusterRole, rbacv1.ClusterRoleBinding) {
	const name = "balsa:ingress"
	role := rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: ingressReads(),
	}
	binding := rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: user.NodesGroup}},
	}
	return role, binding
}

// ingressStatus lets the controller write the status of Ingresses and Gateways.
func ingressStatus() (rbacv1.ClusterRole, rbacv1.ClusterRoleBinding) {
	const account = "ingress-status-controller"
	write := []string{"update", "patch"}
	role := rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:controller:" + account},
		Rules: append(ingressReads(),
			rbacv1.PolicyRule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"ingresses/status"}, Verbs: write},
			rbacv1.PolicyRule{
				APIGroups: []string{gatewayGroup}, Verbs: write,
				Resources: []string{"gatewayclasses/status", "gateways/status", "httproutes/status", "grpcroutes/status"},
			},
			rbacv1.PolicyRule{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
		),
	}
	binding := rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: account}},
	}
	return role, binding
}

const gatewayGroup = "gateway.networking.k8s.io"

func ingressReads() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"ingresses", "ingressclasses"}, Verbs: read},
		{APIGroups: []string{gatewayGroup}, Resources: []string{"gatewayclasses", "gateways", "httproutes", "grpcroutes", "referencegrants"}, Verbs: read},
		{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: read},
	}
}
