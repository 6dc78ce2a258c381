package rest_test

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/balsahq/balsa/control"
)

func bind(t *testing.T, ns, pod, node string, uid types.UID) error {
	t.Helper()
	return admin.CoreV1().Pods(ns).Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ns, UID: uid, Annotations: map[string]string{"by": "test"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

func TestAPodIsBoundOnce(t *testing.T) {
	ns := namespace(t)
	p := pod(t, ns, "p", nil)
	if err := bind(t, ns, "p", "n1", "someone-else"); !apierrors.IsConflict(err) {
		t.Fatalf("bind with another UID: %v", err)
	}
	if err := bind(t, ns, "p", "n1", p.UID); err != nil {
		t.Fatal(err)
	}
	got, err := admin.CoreV1().Pods(ns).Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil || got.Spec.NodeName != "n1" || got.Annotations["by"] != "test" {
		t.Fatalf("%+v, %v", got.Spec.NodeName, err)
	}
	scheduled := false
	for _, c := range got.Status.Conditions {
		scheduled = scheduled || c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue
	}
	if !scheduled {
		t.Errorf("conditions %v", got.Status.Conditions)
	}
	if err := bind(t, ns, "p", "n2", ""); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `pod p is already assigned to node "n1"`) {
		t.Fatalf("second bind: %v", err)
	}
	if err := bind(t, ns, "nobody", "n2", ""); !apierrors.IsNotFound(err) {
		t.Fatalf("bind of no pod: %v", err)
	}
}

func evict(t *testing.T, ns, name string) error {
	t.Helper()
	// A client waits as Retry-After says and tries again; here the first answer counts.
	return admin.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name(name).SubResource("eviction").MaxRetries(0).
		Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}).Do(t.Context()).Error()
}

func running(t *testing.T, ns, name string, labels map[string]string) {
	t.Helper()
	p := pod(t, ns, name, labels)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := admin.CoreV1().Pods(ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestEvictionAsksTheBudget(t *testing.T) {
	ns := namespace(t)
	running(t, ns, "free", nil)
	if err := evict(t, ns, "free"); err != nil {
		t.Fatalf("no budget: %v", err)
	}
	labels := map[string]string{"app": "guarded"}
	running(t, ns, "a", labels)
	running(t, ns, "b", labels)
	one := intstr.FromInt32(1)
	pdb, err := admin.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "pdb"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := evict(t, ns, "a"); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("a budget nobody has looked at yet: %v", err)
	}
	pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
	if _, err := admin.PolicyV1().PodDisruptionBudgets(ns).UpdateStatus(t.Context(), pdb, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := evict(t, ns, "a"); err != nil {
		t.Fatalf("one disruption allowed: %v", err)
	}
	err = evict(t, ns, "b")
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Fatalf("none left: %v", err)
	}
	pdb, err = admin.PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "pdb", metav1.GetOptions{})
	if _, counted := pdb.Status.DisruptedPods["a"]; err != nil || !counted || pdb.Status.DisruptionsAllowed != 0 {
		t.Fatalf("status %+v, %v", pdb.Status, err)
	}
}

func deployment(name string) *appsv1.Deployment {
	l := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: l},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
}

func TestScale(t *testing.T) {
	ns := namespace(t)
	d := admin.AppsV1().Deployments(ns)
	if _, err := d.Create(t.Context(), deployment("web"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale, err := d.GetScale(t.Context(), "web", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 1 || scale.Status.Selector != "app=web" {
		t.Fatalf("%+v, %v", scale, err)
	}
	scale.Spec.Replicas = 4
	if scale, err = d.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{FieldManager: "scaler"}); err != nil || scale.Spec.Replicas != 4 {
		t.Fatalf("%+v, %v", scale, err)
	}
	got, err := d.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *got.Spec.Replicas != 4 {
		t.Fatalf("%v", err)
	}
	owner := ""
	for _, m := range got.ManagedFields {
		var fields map[string]any
		if err := json.Unmarshal(m.FieldsV1.Raw, &fields); err != nil {
			t.Fatal(err)
		}
		if spec, ok := fields["f:spec"].(map[string]any); ok && spec["f:replicas"] != nil {
			owner = m.Manager
		}
	}
	if owner != "scaler" {
		t.Errorf("spec.replicas is owned by %q: %v", owner, got.ManagedFields)
	}
	var patched autoscalingv1.Scale
	if err := admin.AppsV1().RESTClient().Patch(types.MergePatchType).Namespace(ns).Resource("deployments").Name("web").SubResource("scale").
		Body([]byte(`{"spec":{"replicas":2}}`)).Do(t.Context()).Into(&patched); err != nil || patched.Spec.Replicas != 2 {
		t.Fatalf("patch: %+v, %v", patched, err)
	}
	scale.ResourceVersion = "1"
	if _, err := d.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Fatalf("old resource version: %v", err)
	}
	if _, err := d.UpdateScale(t.Context(), "web", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: ns},
		Spec: autoscalingv1.ScaleSpec{Replicas: -1}}, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Fatalf("negative: %v", err)
	}
	if _, err := d.GetScale(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("%v", err)
	}
}

func token(t *testing.T, ns string, spec authenticationv1.TokenRequestSpec) (string, error) {
	t.Helper()
	r, err := admin.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.Token, nil
}

func review(t *testing.T, token string) authenticationv1.TokenReviewStatus {
	t.Helper()
	r, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status
}

func TestTokensAreBoundToWhatTheyAreFor(t *testing.T) {
	ns := namespace(t)
	p := pod(t, ns, "p", nil)
	ref := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "p", UID: p.UID}
	tok, err := token(t, ns, authenticationv1.TokenRequestSpec{BoundObjectRef: ref})
	if err != nil {
		t.Fatal(err)
	}
	st := review(t, tok)
	if !st.Authenticated || st.User.Username != "system:serviceaccount:"+ns+":default" || st.User.Extra["authentication.kubernetes.io/pod-name"][0] != "p" {
		t.Fatalf("%+v", st)
	}
	ref.UID = "another"
	if _, err := token(t, ns, authenticationv1.TokenRequestSpec{BoundObjectRef: ref}); !apierrors.IsConflict(err) {
		t.Fatalf("wrong UID: %v", err)
	}
	if _, err := token(t, ns, authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "ConfigMap", APIVersion: "v1", Name: "x"}}); err == nil {
		t.Fatal("bound to a ConfigMap")
	}
	short := int64(1)
	if _, err := token(t, ns, authenticationv1.TokenRequestSpec{ExpirationSeconds: &short}); !apierrors.IsInvalid(err) {
		t.Fatalf("one second: %v", err)
	}
	// A token nobody has shown yet stops with its pod; one that was shown is remembered for some seconds.
	ref.UID = p.UID
	fresh, err := token(t, ns, authenticationv1.TokenRequestSpec{BoundObjectRef: ref})
	if err != nil {
		t.Fatal(err)
	}
	zero := int64(0)
	if err := admin.CoreV1().Pods(ns).Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	if st := review(t, fresh); st.Authenticated {
		t.Fatalf("token of a deleted pod: %+v", st)
	}
	if st := review(t, tok[:len(tok)-4]+"AAAA"); st.Authenticated {
		t.Fatal("a forged signature is believed")
	}
}

func TestReviewsSeeABindingAtOnce(t *testing.T) {
	ns := namespace(t)
	user := as(control.Identity{User: "jane"})
	ask := func() bool {
		r, err := user.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Verb: "get", Resource: "pods"}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.Allowed
	}
	if ask() {
		t.Fatal("allowed before the binding")
	}
	rb := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "jane"}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: "jane"}}}
	if _, err := admin.RbacV1().RoleBindings(ns).Create(t.Context(), rb, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !ask() {
		t.Fatal("not allowed by the very next request")
	}
	rules, err := user.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}, metav1.CreateOptions{})
	if err != nil || len(rules.Status.ResourceRules) < 3 {
		t.Fatalf("%v, %v", rules, err)
	}
	me, err := user.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "jane" {
		t.Fatalf("%+v, %v", me, err)
	}
	if err := admin.RbacV1().RoleBindings(ns).Delete(t.Context(), "jane", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if ask() {
		t.Fatal("still allowed after the binding is gone")
	}
}

func TestNobodyGivesAwayWhatHeHasNot(t *testing.T) {
	ns := namespace(t)
	subject := []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: "boss"}}
	if _, err := admin.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "boss"}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "admin"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boss := as(control.Identity{User: "boss"})
	role := func(name, resource string) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get"}}}}
	}
	if _, err := boss.RbacV1().Roles(ns).Create(t.Context(), role("ok", "configmaps"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := boss.RbacV1().Roles(ns).Create(t.Context(), role("no", "nodes"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "attempting to grant RBAC permissions not currently held") {
		t.Fatalf("%v", err)
	}
	if _, err := boss.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "up"}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "cluster-admin"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("%v", err)
	}
}

func TestComponentStatuses(t *testing.T) {
	list, err := admin.CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{}) //nolint:staticcheck // old, and asked for
	if err != nil || len(list.Items) == 0 || list.Items[0].Conditions[0].Status != corev1.ConditionTrue {
		t.Fatalf("%+v, %v", list, err)
	}
}
