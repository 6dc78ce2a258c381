package auth_test

import (
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control/auth/bootstrap"
	"github.com/balsahq/balsa/control/auth/pki"
)

func serving() *pki.Leaf { return ca.Serving() }
func pkiCA() []byte      { return ca.CA() }

func TestDefaultRolesAreThereAndAreRepaired(t *testing.T) {
	roles := admin.RbacV1().ClusterRoles()
	admins := must[*rbacv1.ClusterRole](t)(roles.Get(t.Context(), "admin", metav1.GetOptions{}))
	if len(admins.Rules) < 10 || admins.AggregationRule == nil {
		t.Fatalf("admin has %d rules: its parts are not aggregated", len(admins.Rules))
	}
	for _, name := range bootstrap.SystemNamespaces {
		if _, err := admin.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if err := roles.Delete(t.Context(), "system:basic-user", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	strip := func(name string, annotations map[string]string) {
		r := must[*rbacv1.ClusterRole](t)(roles.Get(t.Context(), name, metav1.GetOptions{}))
		r.Rules, r.Annotations = nil, annotations
		must[*rbacv1.ClusterRole](t)(roles.Update(t.Context(), r, metav1.UpdateOptions{}))
	}
	strip("system:discovery", nil)
	strip("system:monitoring", map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"})
	start := time.Now()
	if err := bootstrap.EnsureRBAC(t.Context(), admin, bootstrap.Default()); err != nil {
		t.Fatal(err)
	}
	t.Logf("reconciled in %v", time.Since(start))
	for name, want := range map[string]bool{"system:basic-user": true, "system:discovery": true, "system:monitoring": false} {
		if r := must[*rbacv1.ClusterRole](t)(roles.Get(t.Context(), name, metav1.GetOptions{})); (len(r.Rules) > 0) != want {
			t.Errorf("%s: rules %v", name, r.Rules)
		}
	}
}

func TestAnEmptyStoreIsFilledQuickly(t *testing.T) {
	empty(t, admin)
	start := time.Now()
	if err := bootstrap.EnsureRBAC(t.Context(), admin, bootstrap.Default()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	all := must[*rbacv1.ClusterRoleList](t)(admin.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{}))
	t.Logf("%d cluster roles and their bindings in %v", len(all.Items), took)
	if len(all.Items) < 60 || took > 5*time.Second {
		t.Errorf("%d cluster roles in %v", len(all.Items), took)
	}
}

func empty(t *testing.T, c *kubernetes.Clientset) {
	t.Helper()
	r := c.RbacV1()
	for _, err := range []error{
		r.ClusterRoles().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		r.ClusterRoleBindings().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	for _, ns := range []string{"kube-system", "kube-public"} {
		if err := r.Roles(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := r.RoleBindings(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
