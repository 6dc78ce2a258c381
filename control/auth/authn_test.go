package auth_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/control/auth/pki"
)

// get asks the API server over TLS.
func get(t *testing.T, path string, leaf *pki.Leaf, header http.Header) (int, map[string]any) {
	t.Helper()
	cfg := &tls.Config{RootCAs: ca.Pool()}
	if leaf != nil {
		cfg.GetClientCertificate = leaf.GetClientCertificate
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body map[string]any
	_ = json.NewDecoder(resp.Body).Decode(&body) // some answers are text
	return resp.StatusCode, body
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func TestAnonymousSeesHealthAndDiscoveryDocumentsOnly(t *testing.T) {
	for path, want := range map[string]int{
		"/livez": 200, "/readyz": 200, "/healthz": 200, "/version": 200,
		"/api": 403, "/apis": 403, "/apis/apps/v1": 403, // authenticated as anonymous, but the default roles allow discovery to users only
		"/api/v1/pods": 401, "/api/v1/namespaces/default": 401, "/metrics": 401, "/": 401,
	} {
		if got, _ := get(t, path, nil, nil); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	if got, _ := get(t, "/livez", nil, bearer("nonsense")); got != 401 {
		t.Errorf("a wrong token is no anonymous: %d", got)
	}
}

func TestCertificates(t *testing.T) {
	if got, _ := get(t, "/api/v1/nodes", ca.Admin(), nil); got != 200 {
		t.Errorf("administrator: %d", got)
	}
	node, err := ca.NodeClient("n9")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := get(t, "/api/v1/nodes", node, nil); got != 403 {
		t.Errorf("a node listing all nodes: %d", got)
	}
	if got, _ := get(t, "/api/v1/nodes/n9", node, nil); got != 404 {
		t.Errorf("a node reading its own Node: %d", got)
	}
	if got, body := get(t, "/api/v1/nodes", ca.FrontProxyClient(), http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}); got != 200 {
		t.Errorf("front proxy: %d %v", got, body)
	}
	if got, _ := get(t, "/api/v1/nodes", node, http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}); got != 403 {
		t.Errorf("a node claiming to be a proxy: %d", got)
	}
	other, err := pki.Open(pki.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := get(t, "/api/v1/nodes", other.Admin(), nil); got != 401 {
		t.Errorf("another cluster's administrator: %d", got)
	}
}

func TestServiceAccountAndBootstrapTokens(t *testing.T) {
	ns := namespace(t, nil)
	req, err := admin.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, body := get(t, "/api/v1/namespaces/"+ns+"/pods", nil, bearer(req.Status.Token)); got != 403 ||
		body["message"] != `pods is forbidden: User "system:serviceaccount:`+ns+`:default" cannot list resource "pods" in API group "" in the namespace "`+ns+`"` {
		t.Errorf("%d %v", got, body)
	}
	if got, _ := get(t, "/apis", nil, bearer(req.Status.Token)); got != 200 {
		t.Errorf("discovery by a service account: %d", got)
	}
	review, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: req.Status.Token}}, metav1.CreateOptions{})
	if err != nil || !slices.Contains(review.Status.User.Groups, "system:authenticated") {
		t.Errorf("a token's review: %v, %v", review.Status, err)
	}
	_, err = admin.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type: corev1.SecretTypeBootstrapToken, StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := get(t, "/apis", nil, bearer("abcdef.0123456789abcdef")); got != 200 {
		t.Errorf("bootstrap token: %d", got)
	}
	if got, _ := get(t, "/apis", nil, bearer("abcdef.0123456789abcdee")); got != 401 {
		t.Errorf("wrong bootstrap token: %d", got)
	}
}

func TestOpenIDDocuments(t *testing.T) {
	got, body := get(t, "/.well-known/openid-configuration", ca.Admin(), nil)
	if got != 200 || body["issuer"] != "https://kubernetes.default.svc.cluster.local" {
		t.Fatalf("%d %v", got, body)
	}
	got, body = get(t, "/openid/v1/jwks", ca.Admin(), nil)
	if keys, ok := body["keys"].([]any); got != 200 || !ok || len(keys) != 1 {
		t.Fatalf("%d %v", got, body)
	}
}
