package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// localVolumes is for the one controller that has nodes make, grow and remove volumes of their disks. It asks them
// through nodes/proxy.
func localVolumes() (rbacv1.ClusterRole, rbacv1.ClusterRoleBinding) {
	const account = "local-volume-provisioner"
	rule := func(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	role := rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:controller:" + account},
		Rules: []rbacv1.PolicyRule{
			rule("", []string{"nodes/proxy"}, "create"),
			rule("", []string{"persistentvolumes"}, "get", "create", "update", "delete"),
			rule("", []string{"persistentvolumeclaims", "persistentvolumeclaims/status"}, "update"),
			rule("storage.k8s.io", []string{"storageclasses"}, "list", "create"),
			rule("storage.k8s.io", []string{"csidrivers"}, "get", "create"),
			rule("storage.k8s.io", []string{"csistoragecapacities"}, "create", "update", "delete"),
			{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
		},
	}
	binding := rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: account}},
	}
	return role, binding
}
