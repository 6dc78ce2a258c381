package auth_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/auth/authz"
	"github.com/balsahq/balsa/control/controltest"
)

var advertised = netip.MustParseAddr("192.0.2.1")

func account(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// people are users whose tokens are their names.
func people(t *testing.T, names ...string) func(*control.Config) {
	var csv strings.Builder
	for _, n := range names {
		fmt.Fprintf(&csv, "%s,%s,%s\n", n, n, n)
	}
	file := controltest.File(t, "tokens.csv", csv.String())
	return func(c *control.Config) { c.Authentication = authn.Settings{TokenFile: file} }
}

func decided(z authz.Settings) func(*control.Config) {
	return func(c *control.Config) { c.Authorization = z }
}

// may reports whether a client may list the resource in the namespace default.
func may(t *testing.T, c kubernetes.Interface, resource string) bool {
	t.Helper()
	var err error
	switch resource {
	case "pods":
		_, err = c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	case "secrets":
		_, err = c.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	case "configmaps":
		_, err = c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	default:
		t.Fatal(resource)
	}
	if err != nil && !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestAChainOfPoliciesAndAWebhook(t *testing.T) {
	kubeconfig, calls := reviewer(t, func(review map[string]any) map[string]any {
		spec := review["spec"].(map[string]any)
		at, ok := spec["resourceAttributes"].(map[string]any)
		if !ok {
			return map[string]any{"allowed": false}
		}
		return map[string]any{"allowed": at["resource"] == "configmaps", "denied": at["resource"] == "secrets", "reason": "so says the webhook"}
	})
	abac := controltest.File(t, "abac.jsonl", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"tom","namespace":"default","resource":"pods","readonly":true}}`+"\n")
	s := controltest.Start(t, people(t, "tom", "ann"), decided(authz.Settings{Modes: []string{"Node", "Webhook", "ABAC", "RBAC"}, PolicyFile: abac, WebhookFile: kubeconfig, WebhookVersion: "v1", AuthorizedTTL: time.Minute, UnauthorizedTTL: time.Minute}))
	tom, ann := s.Bearer("tom"), s.Bearer("ann")
	for who, c := range map[string]*kubernetes.Clientset{"tom": tom, "ann": ann} {
		if got, want := may(t, c, "pods"), who == "tom"; got != want {
			t.Errorf("pods by %s: %v", who, got)
		}
		if !may(t, c, "configmaps") {
			t.Errorf("configmaps by %s: the webhook's yes does not count", who)
		}
	}
	if _, err := s.Admin().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ann"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann", APIGroup: rbacv1.GroupName}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !may(t, ann, "pods") {
		t.Error("RBAC comes last and is not asked")
	}
	if _, err := ann.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "so says the webhook") {
		t.Errorf("the webhook's no is not the last word: %v", err)
	}
	n := calls.Load()
	may(t, tom, "configmaps")
	if calls.Load() != n {
		t.Error("a yes is asked for twice")
	}
}

const configured = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: gate
  webhook:
    authorizedTTL: 1s
    unauthorizedTTL: 1s
    cacheAuthorizedRequests: false
    cacheUnauthorizedRequests: false
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}
    matchConditions:
    - expression: has(request.resourceAttributes) && request.resourceAttributes.resource == %q
- type: RBAC
  name: rbac
`

func TestAnAuthorizationConfigurationIsFollowed(t *testing.T) {
	kubeconfig, calls := reviewer(t, func(map[string]any) map[string]any { return map[string]any{"allowed": true} })
	file := controltest.File(t, "authz.yaml", fmt.Sprintf(configured, kubeconfig, "pods"))
	s := controltest.Start(t, people(t, "tom"), decided(authz.Settings{ConfigFile: file}))
	tom := s.Bearer("tom")
	before := calls.Load()
	if !may(t, tom, "pods") || may(t, tom, "secrets") {
		t.Error("the condition does not hold")
	}
	if n := calls.Load() - before; n != 1 {
		t.Errorf("asked %d times for one request that matches", n)
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("nonsense")
	if !may(t, tom, "pods") {
		t.Error("a faulty file changed something")
	}
	write(fmt.Sprintf(configured, kubeconfig, "secrets"))
	controltest.Await(t, "the changed file", func() bool { return may(t, tom, "secrets") && !may(t, tom, "pods") })
}

func TestFaultsOfAuthorizationAreToldTogether(t *testing.T) {
	err := authz.Settings{Modes: []string{"RBAC", "RBAC", "Magic", "ABAC"}, WebhookFile: "/nowhere", WebhookVersion: "v0"}.Validate()
	for _, want := range []string{"RBAC twice", `"Magic"`, "mode ABAC", "mode Webhook", `"v0"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if err := (authz.Settings{ConfigFile: controltest.File(t, "a", "kind: x")}).Validate(); err == nil {
		t.Error("a faulty file passes")
	}
}

// grant gives a user a role with these rules.
func grant(t *testing.T, c kubernetes.Interface, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := must[*rbacv1.ClusterRole](t)(c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"}, Rules: rules}, metav1.CreateOptions{}))
	must[*rbacv1.ClusterRoleBinding](t)(c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}, Subjects: []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}}}, metav1.CreateOptions{}))
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

func TestNobodyGivesAwayMoreThanHeHas(t *testing.T) {
	s := controltest.Start(t, people(t, "clerk", "chief", "binder"))
	all := []string{"*"}
	grant(t, s.Admin(), "clerk", rule(rbacv1.GroupName, "*", "create", "update", "patch", "get", "list"), rule("", "pods", "get"))
	grant(t, s.Admin(), "chief", rule(rbacv1.GroupName, "*", append(all, "escalate", "bind")...))
	grant(t, s.Admin(), "binder", rule(rbacv1.GroupName, "*", "create"), rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles"}, Verbs: []string{"bind"}, ResourceNames: []string{"view"}})
	role := func(who string, r rbacv1.PolicyRule) error {
		_, err := s.Bearer(who).RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}, Rules: []rbacv1.PolicyRule{r}}, metav1.CreateOptions{})
		return err
	}
	bind := func(who, to string) error {
		_, err := s.Bearer(who).RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: to}, Subjects: []rbacv1.Subject{{Kind: "User", Name: who, APIGroup: rbacv1.GroupName}}}, metav1.CreateOptions{})
		return err
	}
	for name, c := range map[string]struct {
		err   error
		right bool
	}{
		"what he has":              {role("clerk", rule("", "pods", "get")), true},
		"what he has not":          {role("clerk", rule("", "secrets", "get")), false},
		"with the verb escalate":   {role("chief", rule("", "secrets", "get")), true},
		"bind what he has not":     {bind("clerk", "cluster-admin"), false},
		"bind with the verb":       {bind("binder", "view"), true},
		"bind another with it":     {bind("binder", "edit"), false},
		"bind all with verb alike": {bind("chief", "cluster-admin"), true},
	} {
		if (c.err == nil) != c.right || c.err != nil && !apierrors.IsForbidden(c.err) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if err := role("clerk", rule("", "secrets", "get")); err == nil || !strings.Contains(err.Error(), "is attempting to grant RBAC permissions not currently held") {
		t.Errorf("%v", err)
	}
	r := must[*authorizationv1.SelfSubjectRulesReview](t)(s.Bearer("clerk").AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{}))
	if !slices.ContainsFunc(r.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool { return slices.Contains(r.Resources, "pods") }) {
		t.Errorf("his own rights are not listed: %+v", r.Status)
	}
}

func TestActingForSomebodyElse(t *testing.T) {
	s := controltest.Start(t, people(t, "agent"))
	as := func(c *restclient.Config, who restclient.ImpersonationConfig) *kubernetes.Clientset {
		c.Impersonate = who
		return kubernetes.NewForConfigOrDie(c)
	}
	u := whoami(t, as(s.AdminConfig(), restclient.ImpersonationConfig{UserName: "jane", UID: "7", Groups: []string{"dev"}, Extra: map[string][]string{"scopes": {"view"}}}))
	if u == nil || u.Username != "jane" || u.UID != "7" || !slices.Contains(u.Groups, "dev") || !slices.Equal(u.Extra["scopes"], []string{"view"}) {
		t.Errorf("%+v", u)
	}
	if u := whoami(t, s.Admin()); u == nil || !slices.Contains(u.Groups, "system:masters") {
		t.Errorf("the administrator: %+v", u)
	}
	agent := s.Anybody()
	agent.BearerToken = "agent"
	jane := as(agent, restclient.ImpersonationConfig{UserName: "jane"})
	if whoami(t, jane) != nil || may(t, jane, "pods") {
		t.Error("without the right")
	}
	// Constrained impersonation: for one user and one kind of request only.
	grant(t, s.Admin(), "jane", rule("", "pods", "list"), rule("", "secrets", "list"))
	grant(t, s.Admin(), "agent", rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"}, ResourceNames: []string{"jane"}, Verbs: []string{"impersonate:user-info"}},
		rule("", "pods", "impersonate-on:user-info:list"))
	if !may(t, jane, "pods") {
		t.Error("list pods for jane")
	}
	if may(t, jane, "secrets") {
		t.Error("list secrets for jane, which is not granted to the agent")
	}
	if may(t, as(agent, restclient.ImpersonationConfig{UserName: "john"}), "pods") {
		t.Error("list pods for john")
	}
}
