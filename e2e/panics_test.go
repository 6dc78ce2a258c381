//go:build failpoint

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// panicPoint is a statement at which a panic is planted. work makes a server reach it, and waits until its request was
// done. It is called with the panics planted, and once more without them, with another name.
type panicPoint struct {
	point string
	work  func(c *cluster, name string)
}

const panicTimes = 2 // panics at a point; the third attempt succeeds

const panicPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","labels":{"app":"NAME"}},"spec":{"terminationGracePeriodSeconds":1,
 "containers":[{"name":"c","image":"balsahq/hello:1","readinessProbe":{"httpGet":{"port":8080,"path":"/"},"periodSeconds":1},
 "volumeMounts":[{"name":"m","mountPath":"/m"}]}],"volumes":[{"name":"m","configMap":{"name":"kube-root-ca.crt"}}]}}`

const panicTemplate = `{"metadata":{"labels":{"app":"NAME"}},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"c","image":"balsahq/hello:1"}]}}`

// made applies a manifest and waits until a jsonpath of the object has the wanted value.
func made(manifest, kind, path, want string) func(*cluster, string) {
	return func(c *cluster, name string) {
		c.insists("apply -f of "+kind, manifest, name)
		c.eventually(kind+" "+name+" is served", c.wants(want, "get", kind, name, "-o", "jsonpath="+path))
	}
}

// insists applies a manifest again until it succeeds, because a panic ends requests too.
func (c *cluster) insists(what, manifest, name string) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), name+".json")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(manifest, "NAME", name)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(what, func() error {
		_, err := c.Kubectl(c.t.Context(), "apply", "-f", path)
		return err
	})
}

var runningPod = made(panicPod, "pod", `{.status.phase} {.status.conditions[?(@.type=="Ready")].status}`, "Running True")

// endedPod deletes a running pod and waits until it is gone.
func endedPod(c *cluster, name string) {
	disarmed := c.disarm()
	runningPod(c, name)
	disarmed()
	c.eventually("pod "+name+" is gone", func() error {
		_, _ = c.Kubectl(c.t.Context(), "delete", "pod", name, "--wait=false")
		if _, err := c.Kubectl(c.t.Context(), "get", "pod", name); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// again runs a command until it succeeds.
func again(args ...string) func(*cluster, string) {
	return func(c *cluster, _ string) {
		c.eventually("kubectl "+strings.Join(args, " "), func() error {
			_, err := c.Kubectl(c.t.Context(), args...)
			return err
		})
	}
}

// listed reads the server's list of tokens, over gRPC.
func listed(c *cluster, _ string) {
	c.eventually("balsa token ls", func() error {
		_, err := c.Balsa(c.t.Context(), "token", "ls")
		return err
	})
}

// nothing is the work of points that are reached without a request.
func nothing(*cluster, string) {}

func resolved(c *cluster, _ string) {
	client := &dns.Client{Timeout: 2 * time.Second}
	c.eventually("a name is resolved", func() error {
		conn, err := c.Dial(c.t.Context(), "udp", net.JoinHostPort("10.96.0.10", "53"))
		if err != nil {
			return err
		}
		defer conn.Close()
		q := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
		answer, _, err := client.ExchangeWithConn(q, &dns.Conn{Conn: conn})
		if err == nil && len(answer.Answer) == 0 {
			err = errors.New("no address")
		}
		return err
	})
}

func workload(group, kind, plural, more, path, want string) func(*cluster, string) {
	return made(fmt.Sprintf(`{"apiVersion":"%s","kind":"%s","metadata":{"name":"NAME"},"spec":{"selector":{"matchLabels":{"app":"NAME"}},"template":%s%s}}`,
		group, kind, panicTemplate, more), plural, path, want)
}

var (
	deployment = workload("apps/v1", "Deployment", "deployment", "", "{.status.availableReplicas}", "1")
	service    = made(panicPod+`
{"apiVersion":"v1","kind":"Service","metadata":{"name":"NAME"},"spec":{"selector":{"app":"NAME"},"ports":[{"port":80,"targetPort":8080}]}}`,
		"endpoints", "{.subsets[*].addresses[*].ip}", ".")
	namespace = made(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"NAME"}}`, "namespace", "{.status.phase}", "Active")
	configMap = made(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"NAME"},"data":{"k":"v"}}`, "configmap", "{.data.k}", "v")
	ingress   = made(`{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"NAME"},"spec":{"rules":[{"host":"NAME.example.com","http":{"paths":[
 {"path":"/","pathType":"Prefix","backend":{"service":{"name":"web","port":{"number":80}}}}]}}]}}`, "ingress", "{.status.loadBalancer.ingress[*].ip}", ".")
)

var panicPoints = []panicPoint{
	{"scheduler/rules", runningPod}, {"scheduler/binding", runningPod}, {"scheduler/events", runningPod},
	{"node/pod", runningPod}, {"node/events", runningPod}, {"node/status", runningPod}, {"node/probe", runningPod}, {"node/runtime events", runningPod},
	{"node/operation/volumes", runningPod}, {"node/operation/sandbox", runningPod}, {"node/operation/image", runningPod}, {"node/operation/start", runningPod},
	{"node/operation/kill", endedPod}, {"node/operation/stop-sandbox", endedPod}, {"node/operation/tear-down", endedPod},
	{"node/operation/purge", endedPod}, {"node/operation/delete", endedPod},
	{"node/lease", nothing}, {"node/object", nothing},
	{"node/kubelet API", func(c *cluster, name string) { again("logs", "web")(c, name) }},
	{"controller/deployment-controller", deployment}, {"controller/replicaset-controller", deployment},
	{"controller/replication-controller", made(fmt.Sprintf(`{"apiVersion":"v1","kind":"ReplicationController","metadata":{"name":"NAME"},"spec":{"selector":{"app":"NAME"},"template":%s}}`, panicTemplate),
		"rc", "{.status.readyReplicas}", "1")},
	{"controller/daemon-set-controller", workload("apps/v1", "DaemonSet", "daemonset", "", "{.status.numberReady}", "1")},
	{"controller/statefulset-controller", workload("apps/v1", "StatefulSet", "statefulset", `,"serviceName":"NAME"`, "{.status.readyReplicas}", "1")},
	{"controller/job-controller", made(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"NAME"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"balsahq/hello:1","command":["sh","-c","exit 0"]}]}}}}`,
		"job", "{.status.succeeded}", "1")},
	{"controller/cronjob-controller", made(`{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"NAME"},"spec":{"schedule":"0 0 1 1 *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"balsahq/hello:1"}]}}}}}}`,
		"cronjob", "{.spec.schedule}", "0 0 1 1 *")},
	{"controller/endpoint-controller", service}, {"controller/endpointslice-controller", service},
	{"controller/service-account-controller", func(c *cluster, name string) {
		namespace(c, name)
		c.eventually("its service account is made", c.wants("default", "get", "serviceaccounts", "-n", name))
	}},
	{"controller/root-ca-cert-publisher", func(c *cluster, name string) {
		namespace(c, name)
		c.eventually("its certificate is published", c.wants("kube-root-ca.crt", "get", "configmaps", "-n", name))
	}},
	{"controller/namespace-controller", func(c *cluster, name string) {
		namespace(c, name)
		_, _ = c.Kubectl(c.t.Context(), "delete", "namespace", name, "--wait=false")
		c.eventually("namespace "+name+" is gone", func() error {
			if _, err := c.Kubectl(c.t.Context(), "get", "namespace", name); err == nil {
				return errors.New("it is there")
			}
			return nil
		})
	}},
	{"controller/disruption-controller", made(`{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"NAME"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"web"}}}}`,
		"pdb", "{.status.observedGeneration} {.status.currentHealthy}", "1 1")},
	{"controller/resourcequota-controller", made(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"NAME"},"spec":{"hard":{"pods":"500"}}}`,
		"resourcequota", "{.status.hard.pods}", "500")},
	{"controller/persistent-volume-binder", made(`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"NAME"},"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"","volumeName":"NAME",
 "resources":{"requests":{"storage":"1Mi"}}}}
{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"NAME"},"spec":{"capacity":{"storage":"1Mi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/tmp"}}}`,
		"pvc", "{.status.phase}", "Bound")},
	{"control/authorizer", configMap}, {"control/admission", configMap}, {"control/validation", configMap}, {"control/fastread", configMap},
	{"control/fastread watch", again("wait", "--for=condition=Ready", "pod/web", "--timeout=30s")},
	{"control/extensions", func(c *cluster, name string) {
		c.insists("a definition", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"NAMEs.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
 "names":{"plural":"NAMEs","singular":"NAME","kind":"KNAME"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, strings.ReplaceAll(name, "-", ""))
		c.eventually("its objects are served", func() error {
			_, err := c.Kubectl(c.t.Context(), "get", strings.ReplaceAll(name, "-", "")+"s.example.com")
			return err
		})
	}},
	{"gRPC", listed}, {"port/handshake", again("get", "--raw", "/readyz")},
	{"overlay/events", service}, {"overlay/engine", service}, {"overlay/dns", resolved},
	{"overlay/policy", made(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"NAME"},"spec":{"podSelector":{"matchLabels":{"app":"NAME"}},"policyTypes":["Ingress"]}}`,
		"networkpolicy", "{.metadata.name}", "p")},
	{"ingress/node", ingress}, {"ingress/status", ingress},
}

// arm plants panics at a point.
func (c *cluster) arm(point string) string {
	c.t.Helper()
	file := filepath.Join(os.Getenv("BALSA_FAILPOINTS"), strings.ReplaceAll(point, "/", "."))
	temporary := filepath.Join(c.t.TempDir(), "armed")
	if err := errors.Join(os.WriteFile(temporary, fmt.Append(nil, panicTimes), 0o600), os.Rename(temporary, file)); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// disarm removes the planted panics until the returned function is called.
func (c *cluster) disarm() (rearm func()) {
	files, _ := filepath.Glob(filepath.Join(os.Getenv("BALSA_FAILPOINTS"), "*"))
	for _, f := range files {
		_ = os.Rename(f, filepath.Join(filepath.Dir(filepath.Dir(f)), "disarmed-"+filepath.Base(f)))
	}
	return func() {
		for _, f := range files {
			_ = os.Rename(filepath.Join(filepath.Dir(filepath.Dir(f)), "disarmed-"+filepath.Base(f)), f)
		}
	}
}

// TestPanicsStayWhereTheyAre plants panics in a server with a node, at one point after the other: the process lives,
// the unit of work is tried again and succeeds, and the next unit of its kind works.
func TestPanicsStayWhereTheyAre(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "points")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BALSA_FAILPOINTS", dir)
	c := newHost(t)
	first := c.arm("leader/term") // reached when the server starts
	c.up()
	pid := c.ServerPID()
	runningPod(c, "web")
	if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
		t.Error("leader/term was not reached")
	}
	for i, p := range panicPoints {
		t.Run(p.point, func(t *testing.T) {
			c := &cluster{Host: c.Host, t: t}
			began := time.Now()
			file := c.arm(p.point)
			p.work(c, fmt.Sprintf("p%d-a", i))
			c.eventually("the place is reached "+fmt.Sprint(panicTimes)+" times", func() error {
				if _, err := os.Stat(file); err == nil {
					return errors.New("it is not")
				}
				return nil
			})
			p.work(c, fmt.Sprintf("p%d-b", i))
			if now := c.ServerPID(); now != pid {
				t.Fatalf("the server was process %d and is %d", pid, now)
			}
			c.eventually("the server is ready", c.wants("ok", "get", "--raw", "/readyz"))
			t.Logf("%d panics, served after %.1f s", panicTimes, time.Since(began).Seconds())
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := c.Kubectl(ctx, "get", "--raw", "/metrics")
	if err != nil || !strings.Contains(out, `balsa_panics_total{unit="leader"}`) {
		t.Errorf("panics are not counted: %v", err)
	}
	if !strings.Contains(c.Log(), "planted at leader/term") || !strings.Contains(c.Log(), "goroutine") {
		t.Error("panics are not logged with their stacks")
	}
}
