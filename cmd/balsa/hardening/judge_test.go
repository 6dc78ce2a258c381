package hardening

import (
	"bytes"
	"io/fs"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// hardened is a cluster in which every control that applies passes.
func hardened() *Facts {
	return &Facts{
		Servers: []Server{{Name: "a:6443", Flags: map[string]string{
			"audit-log-path": "/log", "audit-log-maxage": "30", "audit-log-maxbackup": "10", "audit-log-maxsize": "100",
			"request-timeout": "1m0s", "authorization-mode": "[]", "profile-address": "", "token-auth-file": "",
		}}},
		Nodes: []Node{{Name: "n", Reached: true, Config: map[string]any{
			"authorization": map[string]any{"mode": "Webhook"}, "authentication": map[string]any{"x509": map[string]any{"clientCAFile": "ca"}},
			"streamingConnectionIdleTimeout": "4h0m0s", "rotateCertificates": true, "podPidsLimit": float64(4096), "seccompDefault": true,
		}}},
		Files: []File{
			{"server", fs.ModeDir | 0o700, 0}, {"server/admin.kubeconfig", 0o600, 0}, {"server/tls/ca.pem", 0o600, 0},
			{"server/tls/ca.crt", 0o600, 0}, {"server/recovery.key", 0o600, 0}, {"agent/tls/node.pem", 0o600, 0},
		},
		ClusterRoleBindings: []rbacv1.ClusterRoleBinding{{
			ObjectMeta: metav1.ObjectMeta{Name: "cluster-admin", Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}},
			RoleRef:    rbacv1.RoleRef{Name: "cluster-admin"}, Subjects: []rbacv1.Subject{{Kind: "Group", Name: "system:masters"}},
		}},
		Namespaces: []corev1.Namespace{
			{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}},
		},
		Pods: []corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "own"}, Spec: corev1.PodSpec{HostNetwork: true}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo", Labels: map[string]string{DemoLabel: "true"}}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}},
		},
		NetworkPolicies: []networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}},
		Encrypted:       map[string]bool{"secrets": true},
	}
}

// bound gives somebody a role with one rule.
func bound(group, verb, resource string) func(*Facts) {
	return func(f *Facts) {
		f.ClusterRoles = append(f.ClusterRoles, rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Verbs: []string{verb}, Resources: []string{resource}}}})
		f.RoleBindings = append(f.RoleBindings, rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"}})
	}
}

func flag(name, value string) func(*Facts) {
	return func(f *Facts) { f.Servers[0].Flags[name] = value }
}

func config(name string, value any) func(*Facts) {
	return func(f *Facts) { f.Nodes[0].Config[name] = value }
}

func mode(path string, mode uint32) func(*Facts) {
	return func(f *Facts) {
		i := slices.IndexFunc(f.Files, func(file File) bool { return file.Path == path })
		f.Files[i].Mode = f.Files[i].Mode&^0o777 | fs.FileMode(mode)
	}
}

func web(change func(*corev1.Pod)) func(*Facts) { return func(f *Facts) { change(&f.Pods[2]) } }

// TestEveryControlFailsForItsFault plants one fault each and expects the control that is about it to fail.
func TestEveryControlFailsForItsFault(t *testing.T) {
	c := func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }
	subjects := func(kind, name string) []rbacv1.Subject { return []rbacv1.Subject{{Kind: kind, Name: name}} }
	binding := func(b rbacv1.ClusterRoleBinding) func(*Facts) {
		return func(f *Facts) { f.ClusterRoleBindings = append(f.ClusterRoleBindings, b) }
	}
	faults := []struct {
		id    string
		fault func(*Facts)
	}{
		{"1.1.1", mode("server/tls/ca.pem", 0o640)}, {"1.1.2", func(f *Facts) { f.Files[2].UID = 7 }}, {"1.1.11", mode("server", 0o755)},
		{"1.1.13", mode("server/admin.kubeconfig", 0o644)}, {"1.1.20", mode("server/tls/ca.crt", 0o644)}, {"1.1.21", mode("server/recovery.key", 0o604)},
		{"1.2.1", func(f *Facts) { f.Servers[0].Anonymous = []string{"GET /metrics"} }}, {"1.2.2", flag("token-auth-file", "/tokens")},
		{"1.2.6", flag("authorization-mode", "[RBAC,AlwaysAllow]")}, {"1.2.7", flag("authorization-mode", "[RBAC]")}, {"1.2.8", flag("authorization-mode", "[Node]")},
		{"1.2.12", flag("disable-admission-plugins", "[ServiceAccount]")}, {"1.2.13", flag("disable-admission-plugins", "[X,NamespaceLifecycle]")},
		{"1.2.14", flag("disable-admission-plugins", "[NodeRestriction]")}, {"1.2.15", func(f *Facts) { f.Servers[0].Profiles = true }},
		{"1.2.16", flag("audit-log-path", "none")}, {"1.2.17", flag("audit-log-maxage", "7")}, {"1.2.18", flag("audit-log-maxbackup", "2")},
		{"1.2.19", flag("audit-log-maxsize", "x")}, {"1.2.20", flag("request-timeout", "0s")}, {"1.2.24", func(f *Facts) { f.Servers[0].Err = "refused" }},
		{"1.2.27", func(f *Facts) { f.Encrypted["secrets"] = false }}, {"1.2.29", func(f *Facts) { f.Servers[0].OldTLS = "TLS 1.1" }},
		{"1.3.2", flag("profile-address", "127.0.0.1:6060")}, {"3.2.1", flag("audit-log-path", "none")}, {"3.2.2", func(f *Facts) { f.Servers = nil }},
		{"4.1.5", mode("agent/tls/node.pem", 0o644)}, {"4.2.1", func(f *Facts) { f.Nodes[0].Anonymous = []string{"GET /pods"} }},
		{"4.2.2", config("authorization", map[string]any{"mode": "AlwaysAllow"})}, {"4.2.3", config("authentication", nil)},
		{"4.2.4", func(f *Facts) { f.Nodes[0].ReadOnlyPort = true }}, {"4.2.5", config("streamingConnectionIdleTimeout", "0s")}, {"4.2.10", config("rotateCertificates", false)},
		{"4.2.12", func(f *Facts) { f.Nodes[0].WeakCiphers = []string{"TLS_RSA_WITH_RC4_128_SHA"} }}, {"4.2.13", config("podPidsLimit", float64(-1))}, {"4.2.14", config("seccompDefault", false)},
		{"5.1.1", binding(rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "x"}, RoleRef: rbacv1.RoleRef{Name: "cluster-admin"}})},
		{"5.1.2", bound("", "list", "secrets")}, {"5.1.3", bound("", "*", "configmaps")}, {"5.1.4", bound("", "create", "pods")},
		{"5.1.5", binding(rbacv1.ClusterRoleBinding{Subjects: subjects("ServiceAccount", "default")})},
		{"5.1.7", binding(rbacv1.ClusterRoleBinding{Subjects: subjects("Group", "system:masters")})},
		{"5.1.8", bound("rbac.authorization.k8s.io", "escalate", "clusterroles")}, {"5.1.8", bound("", "impersonate", "users")}, {"5.1.9", bound("", "create", "persistentvolumes")},
		{"5.1.10", bound("", "get", "nodes/proxy")}, {"5.1.11", bound("certificates.k8s.io", "patch", "certificatesigningrequests/approval")},
		{"5.1.12", bound("admissionregistration.k8s.io", "create", "mutatingwebhookconfigurations")}, {"5.1.13", bound("", "create", "serviceaccounts/token")},
		{"5.2.1", func(f *Facts) { f.Namespaces[1].Labels = nil }},
		{"5.2.2", web(func(p *corev1.Pod) { c(p).SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)} })},
		{"5.2.3", web(func(p *corev1.Pod) { p.Spec.HostPID = true })}, {"5.2.4", web(func(p *corev1.Pod) { p.Spec.HostIPC = true })}, {"5.2.5", web(func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		{"5.2.9", web(func(p *corev1.Pod) {
			c(p).SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
		})},
		{"5.2.12", web(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		})},
		{"5.2.13", web(func(p *corev1.Pod) { c(p).Ports = []corev1.ContainerPort{{HostPort: 80}} })}, {"5.3.2", func(f *Facts) { f.NetworkPolicies = nil }},
		{"5.4.1", web(func(p *corev1.Pod) { c(p).EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}} })},
		{"5.7.4", web(func(p *corev1.Pod) { p.Namespace = "default" })},
	}
	covered := map[string]bool{}
	for _, fault := range faults {
		covered[fault.id] = true
		f := hardened()
		fault.fault(f)
		if row := find(t, Judge(f), fault.id); row.Result != Fail || row.Detail == "" {
			t.Errorf("%s does not fail for its fault: %+v", fault.id, row)
		}
	}
	for _, row := range Judge(hardened()) {
		if row.Result == Fail {
			t.Errorf("%s fails without a fault: %s", row.ID, row.Detail)
		}
		if row.Result == Pass && !covered[row.ID] {
			t.Errorf("no fault is planted for %s, %s", row.ID, row.Title)
		}
	}
}

// TestAFailureSaysHowItIsMended: each control that can fail names what mends it, and the table shows that.
func TestAFailureSaysHowItIsMended(t *testing.T) {
	f := hardened()
	f.Servers[0].Flags["audit-log-path"] = "none"
	rows := Judge(f)
	var out bytes.Buffer
	if err := Write(&out, rows); err != nil {
		t.Fatal(err)
	}
	if want := "to fix 1.2.16: remove --audit-log-path=none"; !strings.Contains(out.String(), want) {
		t.Errorf("the table lacks %q:\n%s", want, out.String())
	}
	if Failures(rows) != 2 {
		t.Errorf("%d controls fail, not 1.2.16 and 3.2.1 alone", Failures(rows))
	}
}

// TestWhatCannotBeAskedIsNotApplicable: files of other machines and ports out of reach fail nothing and say where to ask.
func TestWhatCannotBeAskedIsNotApplicable(t *testing.T) {
	f := hardened()
	f.Files, f.FilesMissing, f.Nodes[0].Reached = nil, "run this as root on each server and node", false
	rows := Judge(f)
	for _, id := range []string{"1.1.1", "4.1.5", "4.2.1", "4.2.12"} {
		if row := find(t, rows, id); row.Result != NotApplicable || !strings.Contains(row.Detail, "run this") {
			t.Errorf("%s: %+v", id, row)
		}
	}
}

func find(t *testing.T, rows []Row, id string) Row {
	t.Helper()
	i := slices.IndexFunc(rows, func(r Row) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("there is no control %s", id)
	}
	return rows[i]
}
