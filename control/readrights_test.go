package control_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// grant lets user do what rules say in a namespace.
func grant(ctx context.Context, t *testing.T, client kubernetes.Interface, ns, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	if _, err := client.RbacV1().Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}}
	if _, err := client.RbacV1().RoleBindings(ns).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestAReadAnswersWithNothingButWhatWasAuthorized: a role with a resourceName reads one Secret and no other, by whatever
// path, and a role of a namespace reads nothing that is in no namespace.
func TestAReadAnswersWithNothingButWhatWasAuthorized(t *testing.T) {
	ctx, client, ns := testContext(t), clientset(t, shared.admin()), namespace(t)
	for _, name := range []string{"mine", "other"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"key": []byte("not yet read")}}
		if _, err := client.CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	named, owner := "named-"+ns, "owner-"+ns
	grant(ctx, t, client, ns, named, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"mine"}, Verbs: []string{"get", "list", "watch"}})
	grant(ctx, t, client, ns, owner, rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}})

	secrets, watched := "/api/v1/namespaces/"+ns+"/secrets", "/api/v1/watch/namespaces/"+ns+"/secrets"
	for _, c := range []struct {
		user, path string
		code       int
	}{
		{named, secrets, http.StatusForbidden},
		{named, secrets + "?watch=1", http.StatusForbidden},
		{named, watched + "?watch=1", http.StatusForbidden},
		{named, secrets + "/other", http.StatusForbidden},
		{named, secrets + "/mine", http.StatusOK},
		{named, secrets + "?fieldSelector=metadata.name%3Dmine", http.StatusOK},
		{named, secrets + "?watch=1&fieldSelector=metadata.name%3Dmine", http.StatusOK},
		{named, secrets + "?watch=1&fieldSelector=metadata.name%3Dmine&fieldSelector=metadata.name%3Dother", http.StatusOK},
		{named, watched + "/mine?watch=true", http.StatusOK},
		{named, watched + "/mine", http.StatusOK},
		{named, watched + "/mine?watch=true&fieldSelector=metadata.name%3Dother", http.StatusBadRequest},
		{named, "/api/v1/watch/secrets/mine?watch=true", http.StatusForbidden},
		{owner, secrets, http.StatusOK},
		{owner, "/api/v1/secrets", http.StatusForbidden},
		{owner, "/api/v1/namespaces/" + ns, http.StatusOK},
		{owner, "/api/v1/namespaces/" + ns + "/namespaces", http.StatusNotFound},
		{owner, "/api/v1/namespaces/" + ns + "/namespaces/kube-system", http.StatusNotFound},
		{owner, "/api/v1/namespaces/" + ns + "/namespaces?watch=1", http.StatusNotFound},
		{owner, "/api/v1/watch/namespaces/" + ns + "?watch=1", http.StatusOK},
		{owner, "/apis/rbac.authorization.k8s.io/v1/namespaces/" + ns + "/clusterroles", http.StatusNotFound},
		{owner, "/apis/rbac.authorization.k8s.io/v1/namespaces/" + ns + "/clusterroles/cluster-admin", http.StatusNotFound},
		{owner, "/apis/rbac.authorization.k8s.io/v1/namespaces/" + ns + "/clusterroles?watch=1", http.StatusNotFound},
	} {
		for _, accept := range []string{"*/*", "application/json", "application/vnd.kubernetes.protobuf"} {
			path := c.path + "?timeoutSeconds=1"
			if before, query, ok := strings.Cut(c.path, "?"); ok {
				path = before + "?timeoutSeconds=1&" + query
			}
			if !strings.Contains(c.path, "watch") {
				path = c.path // answered from stored bytes only without parameters that a GET does not know
			}
			code, body := read(ctx, t, c.user, path, accept)
			if code != c.code {
				t.Errorf("%s reads %s as %s: %d, want %d", c.user, path, accept, code, c.code)
			}
			others := []string{"kube-system", "system:masters"}
			if c.user == named {
				others = []string{"other"}
			}
			for _, other := range others {
				if code == http.StatusOK && strings.Contains(body, other) {
					t.Errorf("%s reads %s as %s and is told of %s", c.user, path, accept, other)
				}
			}
			if want := "mine"; code == http.StatusOK && c.user == named && !strings.Contains(body, want) {
				t.Errorf("%s reads %s as %s and is not told of %s: %q", c.user, path, accept, want, body)
			}
		}
	}
}

// read asks for path over the network as user, to the end.
func read(ctx context.Context, t *testing.T, user, path, accept string) (code int, body string) {
	t.Helper()
	config := shared.admin()
	config.Impersonate.UserName = user
	config.UserAgent = "reader"
	transport, err := restclient.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(path, err)
	}
	return answer.StatusCode, string(all)
}
