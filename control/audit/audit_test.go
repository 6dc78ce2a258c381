package audit_test

import (
	"bufio"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/audit"
	"github.com/balsahq/balsa/control/controltest"
)

// recording is a server that writes to a file of the test's own.
func recording(t *testing.T, policy string, change ...func(*audit.Settings)) (s *controltest.Server, file string) {
	t.Helper()
	settings := audit.DefaultSettings()
	file = filepath.Join(t.TempDir(), "logs", "audit.log")
	settings.LogOptions.Path = file
	if policy != "" {
		settings.PolicyFile = controltest.File(t, "policy.yaml", policy)
	}
	for _, c := range change {
		c(settings)
	}
	tokens := controltest.File(t, "tokens.csv", "tom,tom,tom\n")
	return controltest.Start(t, func(c *control.Config) { c.Audit, c.Authentication.TokenFile = settings, tokens }), file
}

// events are the file's lines, each one event.
func events(t *testing.T, file string) []auditv1.Event {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []auditv1.Event
	in := bufio.NewScanner(f)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			t.Fatalf("%v: %s", err, in.Text())
		}
		out = append(out, e)
	}
	return out
}

// one is the last event of a stage about an object's name and verb, awaited: an answer is sent before its event.
func one(t *testing.T, file string, stage auditv1.Stage, verb, name string) auditv1.Event {
	t.Helper()
	var found auditv1.Event
	controltest.Await(t, fmt.Sprintf("%s of %s %s", stage, verb, name), func() bool {
		for _, e := range events(t, file) {
			if e.Stage == stage && e.Verb == verb && e.ObjectRef != nil && e.ObjectRef.Name == name {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"password": "hunter2hunter2"}}
}

func TestTheDefaultPolicyRecordsWhoDidWhatAndNoSecret(t *testing.T) {
	s, file := recording(t, "")
	admin := s.Admin()
	if _, err := admin.CoreV1().Secrets("default").Create(t.Context(), secret("mine"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Secrets("default").Get(t.Context(), "mine", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm"}, Data: map[string]string{"k": "hunter2hunter2"}}
	if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "sa", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}
	if _, err := admin.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Bearer("tom").CoreV1().Secrets("default").Delete(t.Context(), "mine", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	for _, verb := range []string{"create", "get"} {
		e := one(t, file, auditv1.StageResponseComplete, verb, "mine")
		if e.Level != auditv1.LevelMetadata || e.User.Username != "kubernetes-admin" || len(e.SourceIPs) != 1 || e.RequestObject != nil || e.ResponseObject != nil {
			t.Errorf("%s: %+v", verb, e)
		}
	}
	if e := one(t, file, auditv1.StageResponseComplete, "create", "r"); e.Level != auditv1.LevelRequest || e.RequestObject == nil || !strings.Contains(string(e.RequestObject.Raw), `"pods"`) {
		t.Errorf("a change of rights: %+v", e)
	}
	if e := one(t, file, auditv1.StageResponseComplete, "delete", "mine"); e.User.Username != "tom" || e.ResponseStatus.Code != 403 || e.Annotations["authorization.k8s.io/decision"] != "forbid" {
		t.Errorf("what was forbidden: %+v", e)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{"hunter2", "aHVudGVyMmh1bnRlcjI", token.Status.Token, "RequestReceived"} {
		if strings.Contains(string(text), hidden) {
			t.Errorf("the file holds %q", hidden)
		}
	}
	if mode := must(os.Stat(file)).Mode().Perm(); mode != 0o600 {
		t.Errorf("the file's mode is %v", mode)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestAPolicyDecidesLevelAndStages(t *testing.T) {
	s, file := recording(t, `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  namespaces: [kube-public]
  resources: [{resources: [configmaps]}]
- level: RequestResponse
  omitManagedFields: true
  resources: [{resources: [configmaps]}]
- level: Request
  omitStages: [RequestReceived]
  resources: [{resources: [namespaces]}]
- level: None
`)
	for name, space := range map[string]string{"quiet": "kube-public", "loud": "default"} {
		if _, err := s.Admin().CoreV1().ConfigMaps(space).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Admin().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "space"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e := one(t, file, auditv1.StageResponseComplete, "create", "loud")
	if e.RequestObject == nil || e.ResponseObject == nil || !strings.Contains(string(e.ResponseObject.Raw), `"k":"v"`) || strings.Contains(string(e.ResponseObject.Raw), "managedFields") {
		t.Errorf("%+v", e)
	}
	one(t, file, auditv1.StageRequestReceived, "create", "") // its name is in the body, which is not read yet
	if e := one(t, file, auditv1.StageResponseComplete, "create", "space"); e.RequestObject == nil || e.ResponseObject != nil {
		t.Errorf("%+v", e)
	}
	for _, e := range events(t, file) {
		if e.ObjectRef == nil || e.ObjectRef.Namespace == "kube-public" || e.ObjectRef.Name == "space" && e.Stage == auditv1.StageRequestReceived || e.ObjectRef.Resource == "secrets" {
			t.Errorf("recorded all the same: %+v", e)
		}
	}
}

func TestWhoIsNotKnownIsRecorded(t *testing.T) {
	s, file := recording(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, resources: [{resources: [pods]}]}]\n")
	if code, _ := s.Ask(t, s.HTTP(nil), http.MethodGet, "/api/v1/namespaces/default/pods/x", http.Header{"Authorization": {"Bearer s3cr3t-t0ken"}}, nil); code != 401 {
		t.Fatal(code)
	}
	e := one(t, file, auditv1.StageResponseStarted, "get", "x")
	if e.ResponseStatus == nil || e.ResponseStatus.Code != 401 {
		t.Errorf("%+v", e)
	}
	if strings.Contains(string(must(os.ReadFile(file))), "s3cr3t") {
		t.Error("the token is in the file")
	}
}

func TestEventsGoToAWebhookInBatches(t *testing.T) {
	var mu sync.Mutex
	var names []string
	refused := false
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if !refused { // the first batch is to be sent again
			refused = true
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		var list auditv1.EventList
		if err := json.Unmarshal(must(io.ReadAll(r.Body)), &list); err != nil {
			t.Error(err)
		}
		for _, e := range list.Items {
			if e.ObjectRef != nil {
				names = append(names, e.ObjectRef.Name)
			}
		}
	}))
	defer hook.Close()
	ca := controltest.File(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})))
	kubeconfig := controltest.File(t, "hook.kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: w, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: w, user: u}}]
current-context: c
`, hook.URL, ca))
	s, _ := recording(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata, resources: [{resources: [configmaps]}], namespaces: [default], verbs: [create]}]\n",
		func(s *audit.Settings) {
			s.LogOptions.Path = ""
			s.WebhookOptions.ConfigFile = kubeconfig
			s.WebhookOptions.InitialBackoff = 10 * time.Millisecond
			s.WebhookOptions.BatchOptions.BatchConfig.MaxBatchWait = 100 * time.Millisecond
		})
	for i := range 30 {
		if _, err := s.Admin().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	controltest.Await(t, "30 events", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(names) == 30
	})
}

func TestTheFileIsRotated(t *testing.T) {
	s, file := recording(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: RequestResponse, resources: [{resources: [configmaps]}]}]\n",
		func(s *audit.Settings) { s.LogOptions.MaxSize, s.LogOptions.MaxBackups = 1, 2 })
	big := strings.Repeat("x", 200<<10)
	for i := range 12 {
		if _, err := s.Admin().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Data: map[string]string{"k": big}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	controltest.Await(t, "two old files and the one in use", func() bool {
		all := must(filepath.Glob(filepath.Join(filepath.Dir(file), "*")))
		for _, f := range all {
			if i, err := os.Stat(f); err == nil && i.Size() > 1<<20 {
				t.Errorf("%s has %d bytes", f, i.Size())
			}
		}
		return len(all) == 3
	})
}

func TestSettingsAreCheckedAndSecretsWarnedOf(t *testing.T) {
	if a, err := audit.New(audit.DefaultSettings(), slog.Default()); a != nil || err != nil {
		t.Errorf("off: %v, %v", a, err)
	}
	var nobody *audit.Auditor
	if err := nobody.Start(); err != nil {
		t.Error(err)
	}
	nobody.Stop()
	faulty := audit.DefaultSettings()
	faulty.LogOptions.Path, faulty.LogOptions.MaxSize, faulty.LogOptions.Format = "-", -1, "xml"
	faulty.PolicyFile = controltest.File(t, "p", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]\n")
	err := audit.Check(faulty)
	for _, want := range []string{"--audit-log-maxsize", "xml", "--audit-policy-file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	alone := &options.AuditOptions{PolicyFile: "/p"}
	if err := audit.Check(alone); err == nil || !strings.Contains(err.Error(), "--audit-log-path") {
		t.Errorf("%v", err)
	}
	for policy, want := range map[string]bool{"{level: RequestResponse}": true, "{level: Metadata}": false, "{level: Request, resources: [{resources: [secrets]}]}": true} {
		var told strings.Builder
		s := audit.DefaultSettings()
		s.LogOptions.Path = filepath.Join(t.TempDir(), "a")
		s.PolicyFile = controltest.File(t, "p", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: ["+policy+"]\n")
		a, err := audit.New(s, slog.New(slog.NewTextHandler(&told, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		a.Stop()
		if strings.Contains(told.String(), "the content of secrets") != want {
			t.Errorf("%s: %s", policy, told.String())
		}
	}
}
