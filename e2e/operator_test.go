package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const (
	operatorNamespace = "site-operator-system"
	operatorConfig    = "operator/config"
)

// operatorWorks installs the operator of e2e/operator with two replicas, uses its kind, and deletes the operator while
// its objects exist.
func operatorWorks(c *cluster) {
	c.t.Cleanup(func() {
		if c.t.Failed() {
			pods, _ := c.Kubectl(context.Background(), "describe", "pods", "-n", operatorNamespace)
			logs, _ := c.Kubectl(context.Background(), "logs", "-n", operatorNamespace, "-l", "control-plane=controller-manager", "--prefix", "--tail=40")
			c.t.Logf("the operator's pods:\n%s\n%s", pods, logs)
		}
	})
	c.kubectl("apply", "-k", operatorConfig+"/default")
	c.kubectl("rollout", "status", "-n", operatorNamespace, "deployment/site-operator-controller-manager", "--timeout=90s")
	for _, step := range []struct {
		name  string
		check func(*cluster)
	}{
		{"owns what a Site needs", ownsWhatASiteNeeds}, {"refuses what is wrong", refusesWhatIsWrong},
		{"scales and changes", scalesAndChanges}, {"serves two versions", servesTwoVersions}, {"repairs", repairs},
		{"shows metrics", showsMetrics}, {"loses its leader", losesItsLeader}, {"finalizes", finalizes},
	} {
		if !c.t.Run(step.name, func(t *testing.T) { step.check(&cluster{Host: c.Host, t: t}) }) {
			return
		}
	}
	c.kubectl("delete", "-k", operatorConfig+"/default", "--timeout=90s")
	if msg := c.refused("get", "sites.web.example.com"); !strings.Contains(msg, "the server doesn't have a resource type") {
		c.t.Errorf("after the operator has gone: %s", msg)
	}
}

// field reads one value of an object.
func (c *cluster) field(object, path string) string {
	c.t.Helper()
	return c.kubectl("get", object, "-o", "jsonpath={"+path+"}")
}

// says returns a check that a Site's Service answers with its message.
func (c *cluster) says(site, message string) func() error {
	return func() error {
		ip, err := c.Kubectl(c.t.Context(), "get", "service", site, "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		body, err := get(c.HTTP(), "http://"+ip)
		if err == nil && !strings.HasPrefix(body, message+"\n") {
			err = errors.New(body)
		}
		return err
	}
}

func ownsWhatASiteNeeds(c *cluster) {
	sample := operatorConfig + "/samples/web_v1_site.yaml"
	c.eventually("the webhooks answer", func() error {
		_, err := c.Kubectl(c.t.Context(), "apply", "-f", sample)
		return err
	})
	c.kubectl("wait", "--for=condition=Available", "site/welcome", "--timeout=60s")
	for path, want := range map[string]string{
		".spec.host": "welcome.default.sites.example.com", ".spec.image": "127.0.0.1:5000/hello:1", // the webhook's
		".spec.replicas": "1", ".spec.port": "80", // the schema's
		".status.observedGeneration": "1", ".status.replicas": "1",
		".metadata.finalizers[0]": "web.example.com/directory",
	} {
		if got := c.field("site/welcome", path); got != want {
			c.t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	uid := c.field("site/welcome", ".metadata.uid")
	for _, object := range []string{"deployment/welcome", "service/welcome", "configmap/welcome"} {
		if got := c.field(object, ".metadata.ownerReferences[?(@.controller==true)].uid"); got != uid {
			c.t.Errorf("%s is controlled by %q, want the Site %s", object, got, uid)
		}
	}
	c.eventually("the Site answers", c.says("welcome", "Welcome"))
	if out := c.kubectl("get", "si"); !strings.Contains(out, "HOST") || !strings.Contains(out, "welcome.default.sites.example.com") || strings.Contains(out, "IMAGE") {
		c.t.Errorf("the columns:\n%s", out)
	}
	for _, see := range []struct {
		word string
		args []string
	}{
		{"site.web.example.com/welcome", []string{"get", "all"}},
		{"127.0.0.1:5000/hello:1", []string{"get", "sites", "-o", "wide"}},
		{"limits replicas, whoever scales", []string{"explain", "site.spec.maxReplicas"}},
		{"default/welcome", []string{"get", "configmap", "-n", operatorNamespace, "site-directory", "-o", "yaml"}},
		{"Deployment welcome is created", []string{"describe", "site", "welcome"}},
		{"1 of 1 pods answer", []string{"events", "--for", "site/welcome"}},
		{"welcome", []string{"get", "sites", "-A", "--field-selector", "spec.host=welcome.default.sites.example.com", "-o", "name"}},
		{"No resources found", []string{"get", "sites", "-A", "--field-selector", "spec.host=nobody.example.com"}},
	} {
		c.eventually("kubectl shows it", c.wants(see.word, see.args...))
	}
}

func site(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"web.example.com/v1","kind":"Site","metadata":{"name":%q},"spec":%s}`, name, spec)
}

func refusesWhatIsWrong(c *cluster) {
	dir := c.t.TempDir()
	for spec, why := range map[string]string{
		`{"message":"m","replicas":50}`:                              "should be less than or equal to 20",    // the schema
		`{"replicas":1}`:                                             "spec.message",                          // the schema
		`{"message":"m","replicas":5,"maxReplicas":4}`:               "replicas may not be above maxReplicas", // CEL
		`{"message":"m","host":"welcome.default.sites.example.com"}`: "is the host of default/welcome",        // the webhook
		`{"message":"m","massage":"n"}`:                              `unknown field "spec.massage"`,          // strict fields
		`{"message":"m","env":[{"name":"A"},{"name":"A"}]}`:          "Duplicate value",                       // listType=map
		`{"message":"m","host":"no name"}`:                           "spec.host",                             // a format
	} {
		path := filepath.Join(dir, "site.json")
		if err := os.WriteFile(path, []byte(site("wrong", spec)), 0o600); err != nil {
			c.t.Fatal(err)
		}
		if msg := c.refused("create", "-f", path); !strings.Contains(msg, why) {
			c.t.Errorf("%s is refused, but not for %q: %s", spec, why, msg)
		}
	}
	for _, change := range []struct {
		why  string
		args []string
	}{
		{"host cannot be changed", []string{"patch", "site", "welcome", "--type=merge", "-p", `{"spec":{"host":"other.example.com"}}`}},
		{"replicas may not be above maxReplicas", []string{"scale", "site/welcome", "--replicas=5"}},
		{"is forbidden", []string{"get", "sites", "--as=system:serviceaccount:default:default"}},
	} {
		if msg := c.refused(change.args...); !strings.Contains(msg, change.why) {
			c.t.Errorf("kubectl %v is refused, but not for %q: %s", change.args, change.why, msg)
		}
	}
	if out := c.apply(site("tried", `{"message":"m","image":"127.0.0.1:5000/hello"}`), "--dry-run=server"); !strings.Contains(out, "Warning: spec.image has no version") {
		c.t.Errorf("the webhook's warning is not shown: %s", out)
	}
	c.refused("get", "site", "tried")
	c.kubectl("create", "rolebinding", "editor", "--clusterrole=edit", "--serviceaccount=default:default")
	c.eventually("who may edit the namespace may edit Sites", c.wants("yes", "auth", "can-i", "update", "sites.web.example.com", "--as=system:serviceaccount:default:default"))
}

func scalesAndChanges(c *cluster) {
	c.kubectl("scale", "site/welcome", "--replicas=3")
	c.kubectl("wait", "--for=jsonpath={.status.replicas}=3", "site/welcome", "--timeout=60s")
	c.kubectl("wait", "--for=condition=Available", "site/welcome", "--timeout=60s")
	if out := c.kubectl("get", "--raw", "/apis/web.example.com/v1/namespaces/default/sites/welcome/scale"); !strings.Contains(out, `"selector":"app.kubernetes.io/instance=welcome,app.kubernetes.io/name=site"`) {
		c.t.Errorf("the scale subresource: %s", out)
	}
	c.kubectl("patch", "site", "welcome", "--type=merge", "-p", `{"spec":{"message":"Changed"}}`)
	c.eventually("the change arrives", c.says("welcome", "Changed"))

	// Two more field managers, each with its own variable. A manager that sets a field of another one gets a conflict
	// that names the other one.
	for _, who := range []string{"ann", "ben"} {
		c.apply(site("welcome", `{"message":"Changed","maxReplicas":4,"env":[{"name":"OF_`+who+`","value":"v"}]}`), "--server-side", "--field-manager="+who)
	}
	if got := c.field("site/welcome", ".spec.env[*].name"); got != "OF_ann OF_ben" {
		c.t.Errorf("the variables of two managers: %q", got)
	}
	path := filepath.Join(c.t.TempDir(), "site.json")
	if err := os.WriteFile(path, []byte(site("welcome", `{"message":"Mine"}`)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if msg := c.refused("apply", "--server-side", "--field-manager=cid", "-f", path); !strings.Contains(msg, `conflicts with "ann"`) || !strings.Contains(msg, ".spec.message") {
		c.t.Errorf("a conflict of managers: %s", msg)
	}
	c.kubectl("apply", "--server-side", "--field-manager=cid", "--force-conflicts", "-f", path)
	c.eventually("who insists is heard", c.says("welcome", "Mine"))
}

func servesTwoVersions(c *cluster) {
	if out := c.kubectl("apply", "-f", operatorConfig+"/samples/web_v1alpha1_site.yaml"); !strings.Contains(out, "Warning: web.example.com/v1alpha1 Site is deprecated") {
		c.t.Errorf("nobody is warned of the old version: %s", out)
	}
	c.kubectl("wait", "--for=condition=Available", "site/veteran", "--timeout=60s")
	c.eventually("a Site of the old version answers", c.says("veteran", "Still here"))
	if got := c.field("site/veteran", ".spec.host"); got != "veteran.default.sites.example.com" {
		c.t.Errorf("the webhook of v1 was not asked about v1alpha1: the host is %q", got)
	}
	if got := c.field("sites.v1alpha1.web.example.com/welcome", ".spec.text"); !strings.HasPrefix(got, "Mine") {
		c.t.Errorf("welcome in the old version says %q", got)
	}
	c.kubectl("patch", "sites.v1alpha1.web.example.com", "welcome", "--type=merge", "-p", `{"spec":{"size":2}}`)
	if got := c.kubectl("get", "site", "welcome", "-o", "jsonpath={.spec.replicas} {.spec.maxReplicas} {.spec.env[*].name}"); got != "2 4 OF_ann OF_ben" {
		c.t.Errorf("after a change in the old version: %q", got)
	}
	if out := c.kubectl("get", "sites.v1alpha1.web.example.com"); !strings.Contains(out, "SIZE") || !strings.Contains(out, "READY") {
		c.t.Errorf("the columns of the old version:\n%s", out)
	}
}

// repairs: the operator restores and corrects the objects that it owns.
func repairs(c *cluster) {
	before := c.field("deployment/veteran", ".metadata.uid")
	c.kubectl("delete", "deployment", "veteran")
	c.kubectl("delete", "configmap", "veteran")
	c.kubectl("patch", "service", "veteran", "-p", `{"spec":{"selector":{"app.kubernetes.io/name":"wrong"}}}`)
	c.eventually("the Deployment, the ConfigMap and the Service are as they were", func() error {
		out, err := c.Kubectl(c.t.Context(), "get", "deployment/veteran", "configmap/veteran", "service/veteran", "-o",
			`jsonpath={.items[0].metadata.uid} {.items[1].data.message} {.items[2].spec.selector.app\.kubernetes\.io/name}`)
		if err == nil && (strings.HasPrefix(out, before) || !strings.HasSuffix(out, " Still here site")) {
			err = errors.New(out)
		}
		return err
	})
	c.eventually("and the Site answers", c.says("veteran", "Still here"))
}

// showsMetrics: the operator shows metrics only to clients that the API server authorizes.
func showsMetrics(c *cluster) {
	client := c.HTTP()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // the certificate is self-signed
	metrics := func(pod, token string) (int, string, error) {
		req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "https://"+pod+":8443/metrics", nil)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	tokens := map[string]string{} // of two accounts, because the operator caches a refusal for a while
	for _, name := range []string{"stranger", "prometheus"} {
		c.kubectl("create", "serviceaccount", name)
		tokens[name] = strings.TrimSpace(c.kubectl("create", "token", name))
	}
	c.kubectl("create", "clusterrolebinding", "prometheus", "--clusterrole=site-operator-metrics-reader", "--serviceaccount=default:prometheus")
	pods := strings.Fields(c.kubectl("get", "pods", "-n", operatorNamespace, "-o", "jsonpath={.items[*].status.podIP}"))
	for credentials, want := range map[string]int{"": http.StatusUnauthorized, tokens["stranger"]: http.StatusForbidden} {
		if got, _, err := metrics(pods[0], credentials); err != nil || got != want {
			c.t.Errorf("metrics answer %d (%v), want %d", got, err, want)
		}
	}
	c.eventually("one of two replicas has reconciled", func() error {
		leaders := 0
		for _, pod := range pods {
			code, body, err := metrics(pod, tokens["prometheus"])
			if err != nil || code != http.StatusOK {
				return fmt.Errorf("metrics answer %d (%v)", code, err)
			}
			if strings.Contains(body, `leader_election_master_status{name="site-operator.web.example.com"} 1`) && strings.Contains(body, `controller_runtime_reconcile_total{controller="site",result="success"}`) {
				leaders++
			}
		}
		if leaders != 1 {
			return fmt.Errorf("%d replicas lead", leaders)
		}
		return nil
	})
	c.kubectl("delete", "clusterrolebinding", "prometheus")
}

// leader returns the pod that holds the operator's Lease, and its full identity.
func (c *cluster) leader() (pod, identity string) {
	c.t.Helper()
	identity = c.kubectl("get", "lease", "-n", operatorNamespace, "site-operator.web.example.com", "-o", "jsonpath={.spec.holderIdentity}")
	pod, _, _ = strings.Cut(identity, "_")
	return pod, identity
}

// processOf returns the operator's process in a pod; containers run on this computer.
func (c *cluster) processOf(pod string) int {
	c.t.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range environments {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00HOSTNAME="+pod+"\x00")) {
			continue
		}
		if args, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")); err == nil && bytes.HasPrefix(args, []byte("/manager\x00")) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/environ", &pid); err == nil {
				return pid
			}
		}
	}
	c.t.Fatalf("no process of pod %s", pod)
	return 0
}

// losesItsLeader: the leading replica is frozen. When the other one has taken over, the first has to give up; then the
// new leader is killed. While a replica is frozen the test does not use the webhooks, because an API server with a
// connection to that replica waits for it.
func losesItsLeader(c *cluster) {
	frozen, _ := c.leader()
	pid := c.processOf(frozen)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	c.eventually("the other replica takes over", func() error {
		if now, _ := c.leader(); now == frozen {
			return fmt.Errorf("%s still leads", now)
		}
		return nil
	})
	c.kubectl("delete", "service", "welcome")
	c.eventually("it makes again what is missing", c.wants("welcome", "get", "service", "welcome", "-o", "name"))
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("who was frozen gives up and begins anew", func() error {
		return c.wants("1", "get", "pod", "-n", operatorNamespace, frozen, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")()
	})
	c.eventually("and says why", c.wants("leader election lost", "logs", "-n", operatorNamespace, frozen, "--previous"))

	killed, identity := c.leader()
	if err := syscall.Kill(c.processOf(killed), syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("after a kill somebody leads", func() error {
		if _, now := c.leader(); now == identity {
			return fmt.Errorf("%s still leads", now)
		}
		return nil
	})
	c.eventually("its webhooks answer", func() error {
		_, err := c.Kubectl(c.t.Context(), "patch", "site", "welcome", "--type=merge", "-p", `{"spec":{"message":"By the third leader"}}`)
		return err
	})
	c.eventually("it reconciles", c.says("welcome", "By the third leader"))
	c.kubectl("rollout", "status", "-n", operatorNamespace, "deployment/site-operator-controller-manager", "--timeout=60s")
}

func finalizes(c *cluster) {
	c.kubectl("annotate", "site", "welcome", "web.example.com/protected=true")
	if msg := c.refused("delete", "site", "welcome"); !strings.Contains(msg, "is protected") {
		c.t.Errorf("a protected Site: %s", msg)
	}
	c.kubectl("annotate", "site", "welcome", "web.example.com/protected-")
	c.kubectl("delete", "site", "welcome", "--cascade=foreground", "--timeout=60s")
	if out := c.kubectl("get", "deployment,replicaset,service,configmap,pod", "-l", "app.kubernetes.io/instance=welcome", "-o", "name"); strings.Contains(out, "/") {
		c.t.Errorf("left by a deletion in the foreground: %s", out)
	}
	directory := c.kubectl("get", "configmap", "-n", operatorNamespace, "site-directory", "-o", "jsonpath={.data}")
	if strings.Contains(directory, "welcome") || !strings.Contains(directory, "veteran") {
		c.t.Errorf("the directory after a deletion: %s", directory)
	}

	// Without the operator a deletion is refused, and finalizers would stay.
	c.kubectl("scale", "-n", operatorNamespace, "deployment/site-operator-controller-manager", "--replicas=0")
	c.kubectl("wait", "-n", operatorNamespace, "--for=delete", "pod", "-l", "control-plane=controller-manager", "--timeout=60s")
	if msg := c.refused("delete", "site", "veteran", "--wait=false"); !strings.Contains(msg, `failed calling webhook "vsite-v1.kb.io"`) {
		c.t.Errorf("a deletion that nobody validates: %s", msg)
	}
	c.kubectl("delete", "validatingwebhookconfiguration", "site-operator-validating-webhook-configuration")
	c.kubectl("delete", "site", "veteran", "--wait=false")
	if got := c.field("site/veteran", ".metadata.finalizers[0]"); got != "web.example.com/directory" {
		c.t.Errorf("the finalizer is %q", got)
	}
	c.eventually("the background cascade waits for the Site itself", c.wants("veteran", "get", "deployment", "veteran", "-o", "name"))
	c.kubectl("apply", "-k", operatorConfig+"/default") // two replicas again, and the webhooks
	c.kubectl("wait", "--for=delete", "site/veteran", "--timeout=60s")
	c.kubectl("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/instance=veteran", "--timeout=60s")
	c.kubectl("delete", "rolebinding/editor", "serviceaccount/prometheus", "serviceaccount/stranger")
}
