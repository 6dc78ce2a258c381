package etcd

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// upstream is Kubernetes' own control plane, as processes, on this API.
type upstream struct {
	t    *testing.T
	f    *fixture
	bin  string
	dir  string
	port int
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (u *upstream) path(name string) string { return filepath.Join(u.dir, name) }

// start runs a program until the end of the test; its output is shown when the
// test fails.
func (u *upstream) start(name string, args ...string) {
	u.t.Helper()
	log, err := os.Create(u.path(name + ".log"))
	if err != nil {
		u.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(u.bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if u.t.Failed() {
			b, _ := os.ReadFile(log.Name())
			u.t.Logf("%s: ...%s", name, b[max(0, len(b)-6000):])
		}
	})
}

func (u *upstream) kubectl(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(u.bin, "kubectl"), append([]string{"--kubeconfig", u.path("admin.kubeconfig"), "--cache-dir", u.path("cache")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %v: %w: %s", args, err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (u *upstream) must(stdin string, args ...string) string {
	u.t.Helper()
	out, err := u.kubectl(stdin, args...)
	if err != nil {
		u.t.Fatal(err)
	}
	return out
}

// until polls a condition; last is what it said last.
func (u *upstream) until(what string, limit time.Duration, ok func() (string, bool)) {
	u.t.Helper()
	end, tick := time.Now().Add(limit), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for {
		last, done := ok()
		if done {
			return
		}
		if time.Now().After(end) {
			u.t.Fatalf("%s: not within %v: %s", what, limit, last)
		}
		<-tick.C
	}
}

func (u *upstream) certificates() {
	ca := u.f.ca
	ca.issue(u.t, "apiserver", "kube-apiserver")
	ca.issue(u.t, "admin", "admin", "system:masters")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		u.t.Fatal(err)
	}
	writePEM(u.t, ca.path("sa.key"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		u.t.Fatal(err)
	}
	writePEM(u.t, ca.path("sa.pub"), "PUBLIC KEY", pub)
	cakey, err := x509.MarshalECPrivateKey(ca.key)
	if err != nil {
		u.t.Fatal(err)
	}
	if err := os.WriteFile(ca.path("ca.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: cakey}), 0o600); err != nil {
		u.t.Fatal(err)
	}
	conf := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %q}}]
users: [{name: u, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, u.port, ca.path("ca.crt"), ca.path("admin.crt"), ca.path("admin.key"))
	if err := os.WriteFile(u.path("admin.kubeconfig"), []byte(conf), 0o600); err != nil {
		u.t.Fatal(err)
	}
}

func (u *upstream) apiserver() {
	ca := u.f.ca
	u.start("kube-apiserver",
		"--etcd-servers=https://"+u.f.addr, "--etcd-cafile="+ca.path("ca.crt"),
		"--etcd-certfile="+ca.path("client.crt"), "--etcd-keyfile="+ca.path("client.key"),
		"--etcd-compaction-interval=10s", "--etcd-count-metric-poll-period=5s",
		"--advertise-address=127.0.0.1", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", u.port),
		"--endpoint-reconciler-type=none",
		"--authorization-mode=Node,RBAC", "--client-ca-file="+ca.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+ca.path("sa.pub"),
		"--service-account-signing-key-file="+ca.path("sa.key"), "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file="+ca.path("apiserver.crt"), "--tls-private-key-file="+ca.path("apiserver.key"))
	u.until("kube-apiserver is ready", 3*time.Minute, func() (string, bool) {
		out, err := u.kubectl("", "get", "--raw", "/readyz")
		return fmt.Sprint(out, err), err == nil && out == "ok"
	})
}

func (u *upstream) controllers() {
	ca := u.f.ca
	u.start("kube-controller-manager", "--kubeconfig="+u.path("admin.kubeconfig"), "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", freePort(u.t)), "--leader-elect=true", "--root-ca-file="+ca.path("ca.crt"),
		"--service-account-private-key-file="+ca.path("sa.key"), "--use-service-account-credentials=true",
		"--cluster-signing-cert-file="+ca.path("ca.crt"), "--cluster-signing-key-file="+ca.path("ca.key"))
}

const manifest = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "registry.k8s.io/pause:3.10"}]}
`

// TestUpstreamsKubernetesRunsOnIt is the acceptance test of the semantics:
// upstream's kube-apiserver and controllers with this API for an etcd. It needs
// upstream's programs: BALSA_PEERS is the directory they are in.
func TestUpstreamsKubernetesRunsOnIt(t *testing.T) {
	bin := os.Getenv("BALSA_PEERS")
	if bin == "" {
		t.Skip("BALSA_PEERS names no directory with upstream's programs")
	}
	u := &upstream{t: t, f: serve(t, raftstore.Config{Dir: t.TempDir()}, nil), bin: bin, dir: t.TempDir(), port: freePort(t)}
	u.certificates()
	u.apiserver()
	u.controllers()
	u.until("the default service account is made", time.Minute, func() (string, bool) {
		out, err := u.kubectl("", "get", "serviceaccount", "default", "-o", "name")
		return fmt.Sprint(out, err), err == nil
	})
	t.Run("deployment", u.deployment)
	t.Run("watch", u.watch)
	t.Run("pages", u.pages)
	t.Run("optimistic locking", u.conflict)
	t.Run("custom resource", u.customResource)
	t.Run("compaction", u.compaction)
	t.Run("consistent lists from the watch cache", u.consistent)
	t.Run("deletion", u.deletion)
	t.Run("only under the prefix", func(t *testing.T) {
		for k := range outsidePrefix(u.f.store) {
			if !strings.HasPrefix(k, "/balsa/etcd.") {
				t.Errorf("%q was written", k)
			}
		}
	})
}

func (u *upstream) deployment(t *testing.T) {
	u.must(manifest, "apply", "-f", "-")
	u.until("three pods", time.Minute, func() (string, bool) {
		out, err := u.kubectl("", "get", "pods", "-n", "shop", "-o", "name")
		return fmt.Sprint(out, err), err == nil && strings.Count(out, "pod/web-") == 3
	})
	u.must("", "scale", "-n", "shop", "deployment/web", "--replicas=5")
	u.until("five pods", time.Minute, func() (string, bool) {
		out, err := u.kubectl("", "get", "pods", "-n", "shop", "-o", "name")
		return fmt.Sprint(out, err), err == nil && strings.Count(out, "pod/web-") == 5
	})
}

func (u *upstream) watch(t *testing.T) {
	cmd := exec.Command(filepath.Join(u.bin, "kubectl"), "--kubeconfig", u.path("admin.kubeconfig"), "get", "configmaps", "-n", "shop", "-w", "-o", "name")
	out, err := os.Create(u.path("watch.out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	read := func() string { b, _ := os.ReadFile(out.Name()); return string(b) }
	u.until("the watch shows what is there", 30*time.Second, func() (string, bool) {
		return read(), strings.Contains(read(), "configmap/kube-root-ca.crt")
	})
	u.must("", "create", "configmap", "seen", "-n", "shop", "--from-literal=a=b")
	u.until("the watch shows what is new", 30*time.Second, func() (string, bool) {
		return read(), strings.Contains(read(), "configmap/seen")
	})
}

func (u *upstream) pages(t *testing.T) {
	var b strings.Builder
	for i := range 60 {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: page-%02d, namespace: shop, labels: {page: x}}\n", i)
	}
	u.must(b.String(), "create", "-f", "-")
	for _, chunk := range []string{"7", "500"} {
		out := u.must("", "get", "configmaps", "-n", "shop", "-l", "page=x", "--chunk-size="+chunk, "-o", "name")
		if n := strings.Count(out, "configmap/page-"); n != 60 {
			t.Errorf("in pages of %s: %d of 60", chunk, n)
		}
	}
	raw := u.must("", "get", "--raw", "/api/v1/namespaces/shop/configmaps?limit=10")
	if !strings.Contains(raw, `"remainingItemCount":5`) || !strings.Contains(raw, `"continue":"`) {
		t.Errorf("a page says %.300s", raw)
	}
}

func (u *upstream) conflict(t *testing.T) {
	was := u.must("", "get", "configmap", "seen", "-n", "shop", "-o", "json")
	u.must("", "patch", "configmap", "seen", "-n", "shop", "-p", `{"data":{"a":"c"}}`)
	if _, err := u.kubectl(was, "replace", "-f", "-"); err == nil || !strings.Contains(err.Error(), "the object has been modified") {
		t.Errorf("an old version was taken: %v", err)
	}
}

func (u *upstream) customResource(t *testing.T) {
	u.must(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  names: {kind: Thing, plural: things, singular: thing}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, "apply", "-f", "-")
	u.must("", "wait", "--for=condition=Established", "crd/things.example.org", "--timeout=30s")
	u.until("a thing is made", 30*time.Second, func() (string, bool) {
		_, err := u.kubectl("apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one, namespace: shop}\nspec: {a: 1}\n", "apply", "-f", "-")
		return fmt.Sprint(err), err == nil
	})
	if out := u.must("", "get", "things", "-n", "shop", "-o", "jsonpath={.items[0].spec.a}"); out != "1" {
		t.Error(out)
	}
}

// compaction waits until kube-apiserver has compacted, twice.
func (u *upstream) compaction(t *testing.T) {
	key := u.f.server.space.compactKey()
	u.until("kube-apiserver compacts", 90*time.Second, func() (string, bool) {
		kv := u.f.store.View().Get(key)
		return fmt.Sprint(kv), kv != nil && kv.Version >= 2
	})
	own := parseRevision(u.f.store.View().Get(key))
	if _, err := u.f.client(t, "client").Get(within(t), "\x00", clientv3.WithRev(own-1)); err == nil {
		t.Error("what kube-apiserver compacted can still be read")
	}
	if out := u.must("", "get", "pods", "-n", "shop", "-o", "name"); strings.Count(out, "pod/") != 5 {
		t.Error(out)
	}
}

// consistent looks at whether kube-apiserver trusts the progress notifications.
func (u *upstream) consistent(t *testing.T) {
	for i := range 5 {
		u.must("", "patch", "configmap", "seen", "-n", "shop", "-p", fmt.Sprintf(`{"data":{"a":"round-%d"}}`, i))
		out := u.must("", "get", "configmaps", "-n", "shop", "-o", `jsonpath={.items[?(@.metadata.name=="seen")].data.a}`)
		if out != fmt.Sprintf("round-%d", i) {
			t.Errorf("a list after round %d shows %s", i, out)
		}
	}
	metrics := u.must("", "get", "--raw", "/metrics")
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "apiserver_watch_cache_consistent_read_total") {
			t.Log(strings.TrimSpace(line))
			if strings.Contains(line, `fallback="true"`) && strings.Contains(line, `resource="configmaps"`) && !strings.HasSuffix(line, " 0\n") {
				t.Error("lists fell back to reading the store")
			}
		}
	}
	if !strings.Contains(metrics, `apiserver_watch_cache_consistent_read_total{fallback="false"`) {
		t.Error("no list was answered from the watch cache")
	}
}

func (u *upstream) deletion(t *testing.T) {
	u.must("", "delete", "deployment", "web", "-n", "shop")
	u.until("the pods are gone", time.Minute, func() (string, bool) {
		out, err := u.kubectl("", "get", "pods,replicasets", "-n", "shop", "-o", "name")
		return fmt.Sprint(out, err), err == nil && out == ""
	})
	u.must("", "delete", "namespace", "shop", "--timeout=60s")
	if out := u.must("", "get", "namespaces", "-o", "name"); strings.Contains(out, "namespace/shop") {
		t.Error(out)
	}
}
