package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// helmCommand returns a Helm command on the cluster's host, with separate configuration files.
func (c *cluster) helmCommand(ctx context.Context, home string, args ...string) *exec.Cmd {
	c.t.Helper()
	path, err := filepath.Abs(helmBinary)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := c.Command(ctx, path, args...)
	for _, dir := range []string{"CACHE", "CONFIG", "DATA"} {
		cmd.Env = append(cmd.Env, "HELM_"+dir+"_HOME="+filepath.Join(home, dir))
	}
	return cmd
}

// release is one chart in its own namespace of a cluster.
type release struct {
	*cluster
	home string
}

func (r *release) helm(args ...string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := r.helmCommand(ctx, r.home, args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// says runs a command whose output has to contain each of the words.
func (r *release) says(args []string, words ...string) {
	r.t.Helper()
	out := r.helm(args...)
	for _, word := range words {
		if !strings.Contains(out, word) {
			r.t.Errorf("helm %s does not say %q:\n%s", strings.Join(args, " "), word, out)
		}
	}
}

// fails runs a command that has to fail with a reason.
func (r *release) fails(why string, args ...string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := r.helmCommand(ctx, r.home, args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), why) {
		r.t.Errorf("helm %s: %v, want a failure that says %q:\n%s", strings.Join(args, " "), err, why, out)
	}
}

// answers waits until the release's Service answers only with the message.
func (r *release) answers(message string) {
	r.t.Helper()
	url := "http://" + r.kubectl("get", "service", "-n", "shop", "shop-hello", "-o", "jsonpath={.spec.clusterIP}")
	r.eventually("the Service says "+message, func() error {
		for range 5 {
			body, err := get(r.HTTP(), url)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(body, message+"\n") {
				return errors.New(body)
			}
		}
		return nil
	})
}

// helmWorks installs, upgrades, rolls back and removes a release of the chart.
func helmWorks(c *cluster) {
	r := &release{cluster: c, home: c.t.TempDir()}
	r.installs()
	r.upgrades()
	r.failsAndReturns()
	r.comesFromARegistry()
	r.becomesManifests()
	r.uninstalls()
}

func (r *release) installs() {
	r.fails("replicas", "install", "shop", "helm/chart", "-n", "shop", "--create-namespace", "--set", "replicas=99")
	r.says([]string{"install", "shop", "helm/chart", "-n", "shop", "--create-namespace", "--wait", "--wait-for-jobs", "--timeout=90s"},
		"STATUS: deployed", "hello 1 is revision 1 of shop")
	r.answers("Hello from a chart")
	r.says([]string{"list", "-n", "shop"}, "shop", "deployed", "hello-1.0.0")
	r.says([]string{"list", "-A", "-o", "json"}, `"status":"deployed"`)
	r.says([]string{"status", "shop", "-n", "shop"}, "REVISION: 1", "STATUS: deployed")
	r.says([]string{"get", "manifest", "shop", "-n", "shop"}, "kind: Deployment", "kind: PodDisruptionBudget", "kind: Greeting")
	r.says([]string{"get", "hooks", "shop", "-n", "shop"}, "kind: Job", "helm.sh/hook: test")
	r.says([]string{"get", "values", "shop", "-n", "shop", "--all"}, "message: Hello from a chart")
	if out := r.kubectl("get", "greetings", "-n", "shop"); !strings.Contains(out, "LANGUAGE") || !strings.Contains(out, "en") {
		r.t.Errorf("the chart's own kind: %s", out)
	}
	if out := r.kubectl("get", "jobs", "-n", "shop", "-o", "name"); strings.Contains(out, "migration") {
		r.t.Errorf("the hook's Job is still there: %s", out)
	}
	r.says([]string{"test", "shop", "-n", "shop", "--logs", "--timeout=60s"}, "Phase:          Succeeded", "Hello from a chart")
}

func (r *release) upgrades() {
	password := func() string {
		return r.kubectl("get", "secret", "-n", "shop", "shop-hello", "-o", "jsonpath={.data.password}")
	}
	before := password()
	r.says([]string{"upgrade", "shop", "helm/chart", "-n", "shop", "--set", "message=only tried", "--dry-run=server"}, "STATUS: pending-upgrade", "only tried")
	r.says([]string{"upgrade", "shop", "helm/chart", "-n", "shop", "--set", "message=Second,replicas=3,image.tag=2,greeting.language=fr", "--wait", "--timeout=90s"},
		"revision 2")
	r.answers("Second")
	r.says([]string{"get", "values", "shop", "-n", "shop"}, "message: Second", "replicas: 3")
	if after := password(); before == "" || after != before {
		r.t.Errorf("the password that the chart looks up was %q and is %q", before, after)
	}
	// The three-way merge keeps changes that another client has made to an object of the chart.
	r.kubectl("annotate", "deployment", "-n", "shop", "shop-hello", "somebody=else")
	r.helm("upgrade", "shop", "helm/chart", "-n", "shop", "--reuse-values", "--set", "replicas=2", "--wait", "--timeout=90s")
	if out := r.kubectl("get", "deployment", "-n", "shop", "shop-hello", "-o", "jsonpath={.spec.replicas} {.metadata.annotations.somebody}"); out != "2 else" {
		r.t.Errorf("after the third revision: %q", out)
	}
}

// failsAndReturns: an upgrade that cannot succeed, and the rollback.
func (r *release) failsAndReturns() {
	r.fails("rolled back due to atomic", "upgrade", "shop", "helm/chart", "-n", "shop", "--reuse-values", "--set", "image.tag=missing", "--atomic", "--timeout=8s")
	r.says([]string{"history", "shop", "-n", "shop"}, "failed", "Rollback to 3")
	r.answers("Second")
	r.fails("pre-upgrade hooks failed", "upgrade", "shop", "helm/chart", "-n", "shop", "--reuse-values", "--set", "migration.exitCode=1,message=never", "--timeout=30s")
	r.says([]string{"status", "shop", "-n", "shop"}, "STATUS: failed")
	r.answers("Second")
	r.says([]string{"rollback", "shop", "1", "-n", "shop", "--wait", "--timeout=90s"}, "Rollback was a success")
	r.answers("Hello from a chart")
	r.says([]string{"history", "shop", "-n", "shop"}, "Rollback to 1", "deployed", "superseded")
	r.says([]string{"test", "shop", "-n", "shop", "--timeout=60s"}, "Succeeded")
}

// comesFromARegistry: a chart is pushed to and installed from an OCI registry.
func (r *release) comesFromARegistry() {
	r.helm("package", "helm/chart", "-d", r.home, "--version", "1.1.0")
	r.helm("push", filepath.Join(r.home, "hello-1.1.0.tgz"), "oci://127.0.0.1:5000/charts", "--plain-http")
	r.says([]string{"upgrade", "shop", "oci://127.0.0.1:5000/charts/hello", "--version", "1.1.0", "--plain-http", "-n", "shop", "--install", "--wait", "--timeout=90s"}, "STATUS: deployed")
	r.says([]string{"list", "-n", "shop"}, "hello-1.1.0")
}

// becomesManifests: helm template | kubectl apply.
func (r *release) becomesManifests() {
	r.kubectl("create", "namespace", "plain")
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	manifests, err := r.helmCommand(ctx, r.home, "template", "plain", "helm/chart", "-n", "plain", "--no-hooks", "--include-crds",
		"--api-versions", "policy/v1/PodDisruptionBudget", "--set", "replicas=1").Output()
	if err != nil {
		r.t.Fatalf("helm template: %v", err)
	}
	path := filepath.Join(r.home, "manifests.yaml")
	if err := os.WriteFile(path, manifests, 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.kubectl("apply", "-n", "plain", "--server-side", "-f", path)
	r.kubectl("rollout", "status", "-n", "plain", "deployment/plain-hello", "--timeout=60s")
	r.kubectl("delete", "namespace", "plain", "--wait=false")
}

func (r *release) uninstalls() {
	r.says([]string{"uninstall", "shop", "-n", "shop", "--wait", "--timeout=60s"}, `release "shop" uninstalled`)
	if out := r.helm("list", "-n", "shop", "-q"); strings.TrimSpace(out) != "" {
		r.t.Errorf("releases after uninstalling: %s", out)
	}
	r.eventually("nothing of the release is left", func() error {
		out, err := r.Kubectl(r.t.Context(), "get", "all,configmap,secret,serviceaccount,pdb,greeting", "-n", "shop", "-l", "app.kubernetes.io/instance=shop", "-o", "name")
		if err == nil && strings.Contains(out, "/") {
			err = fmt.Errorf("still there: %s", out)
		}
		return err
	})
	r.kubectl("delete", "namespace", "shop", "--wait=false")
}
