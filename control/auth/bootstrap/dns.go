package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dnsSettings lets every node read the ConfigMap that says how names outside the cluster are resolved (package overlay,
// DNSSettings). Lists and watches are allowed with that name as their field selector.
func dnsSettings() (rbacv1.Role, rbacv1.RoleBinding) {
	const name = "balsa:dns-settings"
	meta := metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem}
	return rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"balsa-dns"}, Verbs: []string{"get", "list", "watch"},
		}}}, rbacv1.RoleBinding{ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:kube-proxy"}},
		}
}
