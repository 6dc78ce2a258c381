package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/controltest"
)

// whoami returns the answer to `kubectl auth whoami`; nil: the credentials are refused.
func whoami(t *testing.T, c kubernetes.Interface) *authenticationv1.UserInfo {
	t.Helper()
	r, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil
	}
	return &r.Status.UserInfo
}

func with(s authn.Settings) func(*control.Config) {
	return func(c *control.Config) { c.Authentication = s }
}

const structured = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [%s]
    certificateAuthority: |
%s
  claimValidationRules:
  - expression: claims.hd == "example.com" && claims.email_verified
    message: another company's
  claimMappings:
    username:
      expression: "'oidc:' + claims.email"
    groups:
      expression: "claims.roles.split(',').map(r, 'oidc:' + r)"
    uid:
      claim: sub
    extra:
    - key: example.com/tenant
      valueExpression: claims.tenant
  userValidationRules:
  - expression: "!user.username.endsWith('root')"
    message: nobody is root
`

func indent(text string) string {
	return "      " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      ")
}

func TestAnotherIssuersTokensByConfiguration(t *testing.T) {
	i := newIssuer(t)
	file := controltest.File(t, "authn.yaml", fmt.Sprintf(structured, i.URL, "balsa", indent(i.ca())))
	s := controltest.Start(t, with(authn.Settings{ConfigFile: file}))
	claims := func(change map[string]any) map[string]any {
		out := map[string]any{"email": "jane@example.com", "email_verified": true, "hd": "example.com", "roles": "dev,ops", "tenant": "blue"}
		for k, v := range change {
			out[k] = v
		}
		return out
	}
	var jane *authenticationv1.UserInfo
	controltest.Await(t, "the issuer's keys", func() bool {
		jane = whoami(t, s.Bearer(i.token(t, i.key, claims(nil))))
		return jane != nil
	})
	if jane.Username != "oidc:jane@example.com" || jane.UID != "u-1" || !slices.Contains(jane.Groups, "oidc:ops") ||
		!slices.Contains(jane.Groups, "system:authenticated") || !slices.Equal(jane.Extra["example.com/tenant"], []string{"blue"}) {
		t.Errorf("%+v", jane)
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"another audience":       i.token(t, i.key, claims(map[string]any{"aud": "else"})),
		"its time is over":       i.token(t, i.key, claims(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()})),
		"another key":            i.token(t, other, claims(nil)),
		"a claim's rule":         i.token(t, i.key, claims(map[string]any{"hd": "example.org"})),
		"a user's rule":          i.token(t, i.key, claims(map[string]any{"email": "root"})),
		"another issuer":         i.token(t, i.key, claims(map[string]any{"iss": "https://example.net"})),
		"service accounts' name": i.token(t, i.key, claims(map[string]any{"iss": authn.DefaultIssuer})),
	} {
		if u := whoami(t, s.Bearer(token)); u != nil {
			t.Errorf("%s: is %+v", name, u)
		}
	}
	// A faulty change of the file is not used, a valid one is used without a restart.
	next := i.token(t, i.key, claims(map[string]any{"aud": "next"}))
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("kind: nonsense\n")
	if whoami(t, s.Bearer(i.token(t, i.key, claims(map[string]any{"jti": "2"})))) == nil {
		t.Error("a faulty file took the issuer away")
	}
	write(fmt.Sprintf(structured, i.URL, "next", indent(i.ca())))
	controltest.Await(t, "the changed file", func() bool { return whoami(t, s.Bearer(next)) != nil })
	if whoami(t, s.Bearer(i.token(t, i.key, claims(map[string]any{"jti": "3"})))) != nil {
		t.Error("the audience of before still counts")
	}
}

func TestAnotherIssuersTokensByFlags(t *testing.T) {
	i := newIssuer(t)
	s := controltest.Start(t, with(authn.Settings{OIDC: authn.OIDC{
		IssuerURL: i.URL, ClientID: "balsa", CAFile: controltest.File(t, "ca.pem", i.ca()), GroupsClaim: "groups", GroupsPrefix: "g:",
		RequiredClaims: map[string]string{"team": "a"},
	}}))
	var u *authenticationv1.UserInfo
	controltest.Await(t, "the issuer's keys", func() bool {
		u = whoami(t, s.Bearer(i.token(t, i.key, map[string]any{"groups": []string{"x"}, "team": "a"})))
		return u != nil
	})
	if u.Username != i.URL+"#u-1" || !slices.Contains(u.Groups, "g:x") {
		t.Errorf("%+v", u)
	}
	if u := whoami(t, s.Bearer(i.token(t, i.key, map[string]any{"team": "b"}))); u != nil {
		t.Errorf("without the claim: %+v", u)
	}
	// Service-account tokens are still accepted.
	ns := "default"
	if _, err := s.Admin().CoreV1().ServiceAccounts(ns).Create(t.Context(), account("robot"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Admin().CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if u := whoami(t, s.Bearer(r.Status.Token)); u == nil || u.Username != "system:serviceaccount:default:robot" {
		t.Errorf("service account: %+v", u)
	}
}

// reviewer starts a webhook; answer gets each review and returns its status.
func reviewer(t *testing.T, answer func(review map[string]any) map[string]any) (kubeconfig string, calls *atomic.Int64) {
	t.Helper()
	calls = &atomic.Int64{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var review map[string]any
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review["status"] = answer(review)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return controltest.File(t, "webhook.kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: w, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: w, user: u}}]
current-context: c
`, server.URL, controltest.File(t, "ca.pem", string(ca)))), calls
}

func TestTokensOfAWebhook(t *testing.T) {
	kubeconfig, calls := reviewer(t, func(review map[string]any) map[string]any {
		if review["apiVersion"] != "authentication.k8s.io/v1" {
			return map[string]any{"error": fmt.Sprint("asked in ", review["apiVersion"])}
		}
		if review["spec"].(map[string]any)["token"] != "sesame" {
			return map[string]any{"authenticated": false}
		}
		return map[string]any{"authenticated": true, "user": map[string]any{"username": "ali", "uid": "40", "groups": []string{"thieves"}, "extra": map[string]any{"cave": []string{"open"}}}}
	})
	s := controltest.Start(t, with(authn.Settings{WebhookFile: kubeconfig, WebhookVersion: "v1", WebhookTTL: time.Minute}))
	for range 3 {
		u := whoami(t, s.Bearer("sesame"))
		if u == nil || u.Username != "ali" || u.UID != "40" || !slices.Contains(u.Groups, "thieves") || !slices.Equal(u.Extra["cave"], []string{"open"}) {
			t.Fatalf("%+v", u)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("asked %d times for one token", n)
	}
	if u := whoami(t, s.Bearer("barley")); u != nil {
		t.Errorf("%+v", u)
	}
}

func TestTokensAndPasswordsOfFiles(t *testing.T) {
	s := controltest.Start(t, with(authn.Settings{
		TokenFile:    controltest.File(t, "tokens.csv", "abc,tom,1,\"a,b\"\n"),
		PasswordFile: controltest.File(t, "passwords.csv", "# who and how\nse:cret,ann,2,\"c,d\"\nother,bob,3\n"),
	}))
	if u := whoami(t, s.Bearer("abc")); u == nil || u.Username != "tom" || u.UID != "1" || !slices.Contains(u.Groups, "b") {
		t.Errorf("%+v", u)
	}
	as := func(user, password string) *authenticationv1.UserInfo {
		c := s.Anybody()
		c.Username, c.Password = user, password
		return whoami(t, kubernetes.NewForConfigOrDie(c))
	}
	if u := as("ann", "se:cret"); u == nil || u.UID != "2" || !slices.Contains(u.Groups, "d") || !slices.Contains(u.Groups, "system:authenticated") {
		t.Errorf("%+v", u)
	}
	for _, wrong := range [][2]string{{"ann", "other"}, {"ann", ""}, {"nobody", "se:cret"}, {"", ""}} {
		if u := as(wrong[0], wrong[1]); u != nil {
			t.Errorf("%q is %+v", wrong, u)
		}
	}
	for name, text := range map[string]string{"too few": "a,b\n", "twice": "a,u,1\nb,u,2\n", "no user": "a,,1\n"} {
		settings := authn.Settings{PasswordFile: controltest.File(t, "p.csv", text)}
		cfg := control.Config{Store: s.Store, PKI: s.PKI, AdvertiseAddress: advertised, Authentication: settings}
		if _, err := control.New(cfg); err == nil || !strings.Contains(err.Error(), "--basic-auth-file") || strings.Contains(err.Error(), "a,") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// signed returns a certificate of a CA that is not the cluster's.
func signed(t *testing.T, name string) (certificate *tls.Certificate, ca string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := func(cn string, isCA bool) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	}
	root := template("other", true)
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, template(name, false), root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}))
}

func TestAnotherProxyIsBelieved(t *testing.T) {
	certificate, ca := signed(t, "gate")
	s := controltest.Start(t, with(authn.Settings{Proxy: authn.Proxy{
		CAFile: controltest.File(t, "proxy.pem", ca), Names: []string{"gate"}, UserHeaders: []string{"X-Gate-User"}, GroupHeaders: []string{"X-Gate-Group"},
	}}))
	claim := http.Header{"X-Gate-User": {"eve"}, "X-Gate-Group": {"system:masters"}}
	if code, body := s.Ask(t, s.HTTP(certificate), http.MethodGet, "/api/v1/nodes", claim.Clone(), nil); code != 200 {
		t.Errorf("the proxy: %d %s", code, body)
	}
	if code, _ := s.Ask(t, s.HTTP(certificate), http.MethodGet, "/api/v1/nodes", nil, nil); code != 401 {
		t.Errorf("the proxy for nobody: %d", code)
	}
	stranger, _ := signed(t, "gate")
	if code, _ := s.Ask(t, s.HTTP(stranger), http.MethodGet, "/api/v1/nodes", claim.Clone(), nil); code != 401 {
		t.Errorf("another's certificate of that name: %d", code)
	}
	if code, _ := s.Ask(t, s.HTTP(nil), http.MethodGet, "/api/v1/nodes", claim.Clone(), nil); code != 401 {
		t.Errorf("no certificate: %d", code)
	}
}

func TestWhoMayBeNobody(t *testing.T) {
	for setting, want := range map[string][2]int{"true": {403, 200}, "false": {401, 401}, "": {401, 200}} {
		s := controltest.Start(t, with(authn.Settings{Anonymous: setting}))
		for i, path := range []string{"/api/v1/pods", "/livez"} {
			if code, _ := s.Ask(t, s.HTTP(nil), http.MethodGet, path, nil, nil); code != want[i] {
				t.Errorf("--anonymous-auth=%q, %s: %d, want %d", setting, path, code, want[i])
			}
		}
	}
	file := controltest.File(t, "authn.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /version}]}\n")
	s := controltest.Start(t, with(authn.Settings{ConfigFile: file}))
	for path, want := range map[string]int{"/version": 200, "/livez": 401} {
		if code, _ := s.Ask(t, s.HTTP(nil), http.MethodGet, path, nil, nil); code != want {
			t.Errorf("by file, %s: %d, want %d", path, code, want)
		}
	}
}

func TestFaultsOfAuthenticationAreToldTogether(t *testing.T) {
	err := authn.Settings{ConfigFile: "/nowhere", OIDC: authn.OIDC{ClientID: "x", SigningAlgs: []string{"none"}}, Anonymous: "maybe", WebhookFile: "/nowhere"}.Validate()
	for _, want := range []string{"--authentication-config and --oidc-*", "--oidc-issuer-url", `"none"`, `"maybe"`, "--authentication-token-webhook-config-file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
