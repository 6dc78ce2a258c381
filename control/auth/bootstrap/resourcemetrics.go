package bootstrap

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resourceMetrics makes what nodes and pods use part of the roles view, edit and admin. metrics-server's manifests do so
// with a role of their own, system:aggregated-metrics-reader; this one has another name, so that it stays when
// metrics-server is removed.
func resourceMetrics() rbacv1.ClusterRole {
	labels := map[string]string{}
	for _, role := range []string{"view", "edit", "admin"} {
		labels["rbac.authorization.k8s.io/aggregate-to-"+role] = "true"
	}
	return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "balsa:resource-metrics", Labels: labels}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"nodes", "pods"}, Verbs: []string{"get", "list", "watch"}},
	}}
}
