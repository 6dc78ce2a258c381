package clusterrole

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func role(name string, labels map[string]string, verbs ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	for _, v := range verbs {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{v}})
	}
	return r
}

func TestAggregatedJoinsEachRuleOnceInTheOrderOfNames(t *testing.T) {
	view := map[string]string{"to": "view"}
	top := role("top", view, "own")
	top.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: view}, {MatchLabels: map[string]string{"more": "yes"}}}}
	got := aggregated(top, []*rbacv1.ClusterRole{
		top, role("b", view, "list", "get"), role("a", view, "get", "watch"), role("c", nil, "delete"), role("d", map[string]string{"more": "yes"}, "patch"),
	})
	want := []string{"get", "watch", "list", "patch"}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i].Verbs[0] != want[i] {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}
