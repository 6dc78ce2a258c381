package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestDeploymentLife exercises all kubectl commands for a Deployment, once with the kubectl inside balsa and once with
// upstream's.
func TestDeploymentLife(t *testing.T) {
	for name, kubectl := range map[string]string{"built-in": "", "upstream": kubectlBinary} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			if kubectl != "" {
				path, err := filepath.Abs(kubectl)
				if err != nil {
					t.Fatal(err)
				}
				c.UseKubectl(path)
			}
			c.kubectl("create", "deployment", "hello", "--image=balsahq/hello:1", "--replicas=3", "--port=8080")
			c.kubectl("expose", "deployment", "hello", "--port=80", "--target-port=8080")
			c.kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
			for step, check := range map[string]func(*cluster){
				"answers": answers, "streams": streams, "copies": copies, "describes": describes,
			} {
				t.Run(step, func(t *testing.T) { check(&cluster{Host: c.Host, t: t}) })
			}
			t.Run("rolls", func(t *testing.T) { rolls(&cluster{Host: c.Host, t: t}) })
			t.Run("is deleted", func(t *testing.T) { isDeleted(&cluster{Host: c.Host, t: t}) })
		})
	}
}

func (c *cluster) clusterIP(service string) string {
	return c.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
}

func get(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return string(body), err
}

// answers: the Service answers by ClusterIP from the host, and by name from another pod.
func answers(c *cluster) {
	url := "http://" + c.clusterIP("hello")
	c.eventually("the Service answers the host", func() error {
		_, err := get(c.HTTP(), url)
		return err
	})
	c.eventually("all pods answer", func() error { // the node learns of them one by one
		pods := map[string]bool{}
		for range 60 {
			body, err := get(c.HTTP(), url)
			if err != nil {
				return err
			}
			for line := range strings.Lines(body) {
				if strings.HasPrefix(line, "pod: ") {
					pods[line] = true
				}
			}
		}
		if len(pods) != 3 {
			return fmt.Errorf("60 requests were answered by %d pods, want all 3: %v", len(pods), pods)
		}
		return nil
	})
	c.kubectl("run", "visitor", "--image=balsahq/hello:1")
	c.kubectl("wait", "--for=condition=Ready", "pod/visitor", "--timeout=60s")
	for _, name := range []string{"hello", "hello.default", "hello.default.svc.cluster.local"} {
		if out := c.kubectl("exec", "visitor", "--", "get", "http://"+name); !strings.Contains(out, "Hello from Balsa") {
			c.t.Errorf("by the name %s: %s", name, out)
		}
	}
	c.kubectl("delete", "pod", "visitor", "--wait=true")
}

func (c *cluster) firstPod() string {
	return c.kubectl("get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[0].metadata.name}")
}

// streams: logs -f, exec with a terminal, attach, port-forward, get -w.
func streams(c *cluster) {
	pod := c.firstPod()
	ip := c.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")

	logs := c.inBackground("logs", "-f", pod)
	attached := c.inBackground("attach", pod)
	c.eventually("logs -f shows a line", logs.says("listening on :8080"))
	c.eventually("logs -f and attach show a new request", func() error {
		if _, err := get(c.HTTP(), "http://"+ip+":8080/streams"); err != nil {
			return err
		}
		return errors.Join(logs.says("GET /streams")(), attached.says("GET /streams")())
	})
	logs.end()
	attached.end()

	if out := c.kubectl("exec", pod, "--", "sh", "-c", "echo $((40+2)); hostname"); !strings.Contains(out, "42\n"+pod) {
		c.t.Errorf("exec: %q", out)
	}
	if out := terminal(c, pod, "echo from a terminal\nexit 3\n"); !strings.Contains(out, "from a terminal") || !strings.Contains(out, "exit code 3") {
		c.t.Errorf("exec -it: %q", out)
	}
	if msg := c.refused("exec", pod, "--", "sh", "-c", "exit 7"); !strings.Contains(msg, "exit code 7") && !strings.Contains(msg, "exit status 7") {
		c.t.Errorf("exec does not hand on the exit code: %s", msg)
	}

	forward := c.inBackground("port-forward", "--address=127.0.0.1", "service/hello", "18080:80")
	c.eventually("port-forward listens", forward.says("Forwarding from"))
	c.eventually("port-forward carries a request", func() error {
		_, err := get(c.HTTP(), "http://127.0.0.1:18080/")
		return err
	})
	forward.end()

	watch := c.inBackground("get", "deployment", "hello", "-w")
	c.eventually("get -w begins", watch.says("hello"))
	c.kubectl("scale", "deployment", "hello", "--replicas=4")
	c.eventually("get -w follows", watch.says("4/4"))
	watch.end()
	c.kubectl("scale", "deployment", "hello", "--replicas=3")
	c.eventually("the fourth pod is gone", func() error { // it may be the first one by name
		if pods := strings.Fields(c.kubectl("get", "pods", "-l", "app=hello", "-o", "name")); len(pods) != 3 {
			return fmt.Errorf("%v", pods)
		}
		return nil
	})
}

// terminal runs exec -it under script(1), which gives kubectl a terminal.
func terminal(c *cluster, pod, input string) string {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	kubectl := c.KubectlCommand(ctx, "exec", "-it", pod, "--", "sh")
	cmd := exec.CommandContext(ctx, "script", "-qec", strings.Join(kubectl.Args, " "), "/dev/null")
	cmd.Env = kubectl.Env
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return string(out)
}

// copies: cp in both directions.
func copies(c *cluster) {
	pod, dir := c.firstPod(), c.t.TempDir()
	content := strings.Repeat("a line of a file\n", 5000)
	if err := os.WriteFile(filepath.Join(dir, "there"), []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("cp", filepath.Join(dir, "there"), pod+":/tmp/there")
	c.kubectl("cp", pod+":/tmp/there", filepath.Join(dir, "back"))
	back, err := os.ReadFile(filepath.Join(dir, "back"))
	if err != nil || string(back) != content {
		c.t.Errorf("cp gave back %d bytes of %d (%v)", len(back), len(content), err)
	}
}

// describes: the output of describe, where people look for the reason of a fault.
func describes(c *cluster) {
	pod := c.firstPod()
	for _, want := range []string{"Scheduled", "Pulled", "Created", "Started", "Successfully assigned default/", "QoS Class:", "BestEffort"} {
		c.eventually("describe pod has "+want, c.wants(want, "describe", "pod", pod)) // Events come a moment later
	}
	for _, want := range []string{"ScalingReplicaSet", "NewReplicaSetAvailable"} {
		c.eventually("describe deployment has "+want, c.wants(want, "describe", "deployment", "hello"))
	}
	if out := c.kubectl("describe", "node"); !strings.Contains(out, "KubeletReady") && !strings.Contains(out, "Ready ") {
		c.t.Errorf("describe node:\n%s", out)
	}
}

// rolls: an update under load without a failed request, then history, undo, pause and resume.
func rolls(c *cluster) {
	c.kubectl("patch", "deployment", "hello", "--type=json", `-p=[{"op":"add","path":"/spec/template/spec/containers/0/readinessProbe","value":{"httpGet":{"path":"/healthz","port":8080},"periodSeconds":1}}]`)
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=90s")
	url := "http://" + c.clusterIP("hello")
	stop := load(c, url)
	c.kubectl("set", "image", "deployment/hello", "hello=balsahq/hello:2")
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=90s")
	sent, failed, first := stop()
	if failed > 0 || sent < 20 {
		c.t.Errorf("%d of %d requests failed during the update; the first: %v", failed, sent, first)
	}
	c.t.Logf("%d requests during the update, none failed", sent)
	c.eventually("version 2 is there", func() error { // pods that are ending may answer for a moment
		body, err := get(c.HTTP(), url)
		if err == nil && !strings.Contains(body, "version: 2") {
			err = errors.New(body)
		}
		return err
	})
	if out := c.kubectl("rollout", "history", "deployment/hello"); !strings.Contains(out, "\n3 ") {
		c.t.Errorf("history:\n%s", out)
	}
	c.kubectl("rollout", "undo", "deployment/hello")
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=90s")
	c.eventually("version 1 is back", func() error {
		body, err := get(c.HTTP(), url)
		if err == nil && !strings.Contains(body, "version: 1") {
			err = errors.New(body)
		}
		return err
	})
	c.kubectl("rollout", "pause", "deployment/hello")
	c.kubectl("set", "image", "deployment/hello", "hello=balsahq/hello:2")
	if msg := c.refused("rollout", "status", "deployment/hello", "--timeout=2s"); !strings.Contains(msg, "timed out") {
		c.t.Errorf("a paused rollout went on: %s", msg)
	}
	c.kubectl("rollout", "resume", "deployment/hello")
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=90s")
}

// load sends requests one after the other until stop is called.
func load(c *cluster, url string) (stop func() (sent, failed int64, first error)) {
	var sent, failed atomic.Int64
	var first atomic.Pointer[error]
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		client := c.HTTP()
		for ctx.Err() == nil {
			sent.Add(1)
			if _, err := get(client, url); err != nil {
				failed.Add(1)
				first.CompareAndSwap(nil, &err)
			}
		}
	}()
	return func() (int64, int64, error) {
		cancel()
		<-done
		if err := first.Load(); err != nil {
			return sent.Load(), failed.Load(), *err
		}
		return sent.Load(), failed.Load(), nil
	}
}

// isDeleted: deletion with each cascade policy, and of a namespace with all its objects.
func isDeleted(c *cluster) {
	owner := c.kubectl("get", "replicasets", "-l", "app=hello", "-o", "jsonpath={.items[0].metadata.name}")
	c.kubectl("delete", "deployment", "hello", "--cascade=orphan")
	if out := c.kubectl("get", "replicaset", owner, "-o", "jsonpath={.metadata.ownerReferences}"); strings.Contains(out, "Deployment") {
		c.t.Errorf("the orphan still names its owner: %s", out)
	}
	c.kubectl("delete", "replicasets", "-l", "app=hello", "--cascade=foreground", "--wait=true")
	if out := c.kubectl("get", "pods", "-l", "app=hello", "-o", "name"); strings.Contains(out, "pod/") {
		c.t.Errorf("foreground deletion left pods: %s", out)
	}
	c.kubectl("create", "namespace", "short-lived")
	c.kubectl("create", "deployment", "hello", "-n", "short-lived", "--image=balsahq/hello:1")
	c.kubectl("rollout", "status", "deployment/hello", "-n", "short-lived", "--timeout=60s")
	c.kubectl("delete", "deployment", "hello", "-n", "short-lived", "--cascade=background")
	c.eventually("background deletion reaches the pods", func() error {
		out, err := c.Kubectl(c.t.Context(), "get", "pods", "-n", "short-lived", "-o", "name")
		if err == nil && strings.Contains(out, "pod/") {
			err = errors.New(out)
		}
		return err
	})
	c.kubectl("create", "configmap", "content", "-n", "short-lived", "--from-literal=a=b")
	c.kubectl("delete", "namespace", "short-lived", "--wait=true", "--timeout=60s")
	c.refused("get", "namespace", "short-lived")
}
