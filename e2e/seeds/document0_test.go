package seeds

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
)

var document0 = []row{
	{0, 8, 8, "kubectl run --image=nginx --replicas=3", func(w *world) {
		w.refused("run --image=nginx --replicas=3", "NAME is required")
		out := w.kubectl("run nginx --image=nginx --replicas=3")
		if !strings.Contains(out, "deployment.apps/nginx created") || !strings.Contains(out, "deprecated") {
			w.Error(out)
		}
		w.says("get deployment nginx -o jsonpath={.status.readyReplicas}", "3")
		w.gone("deployment nginx")
	}, "the line lost its number and its name in translation; kubectl has always wanted a name"},
	{0, 52, 52, "kubectl run --generator", func(w *world) {
		for generator, want := range map[string]string{"deployment/v1beta1": "deployment.apps/g created", "run/v1": "replicationcontroller/g created", "job/v1": "job.batch/g created", "run-pod/v1": "pod/g created"} {
			if out := w.kubectl("run g --image=nginx --dry-run=server --generator=" + generator); !strings.Contains(out, want) {
				w.Errorf("%s: %s", generator, out)
			}
		}
	}, ""},
	{0, 54, 54, "--restart-policy, --dry-run", func(w *world) {
		if out := w.kubectl("run one --image=nginx --restart-policy=Always --replicas=1 --dry-run -o name"); !strings.Contains(out, "deployment.apps/one") {
			w.Error(out)
		}
		if out := w.kubectl("run one --image=nginx --restart-policy=Never --dry-run -o name"); !strings.Contains(out, "pod/one") {
			w.Error(out)
		}
	}, "a run without --replicas and --generator is a Pod today, so the Deployment is asked for"},
	{0, 64, 64, "-v at its highest, without the cache of discovery", func(w *world) {
		w.says("get namespaces -v=9 --cache-dir="+w.TempDir(), "GET", "/apis?timeout=", "200 OK")
	}, ""},
	{0, 74, 74, "--kubeconfig", func(w *world) { w.says("--kubeconfig="+w.host.Kubeconfig()+" get namespaces", "kube-system") }, ""},
	{0, 75, 75, "$KUBECONFIG", func(w *world) {
		cmd := w.host.KubectlCommand(w.Context(), "get", "namespaces")
		cmd.Env = append(cmd.Env, "KUBECONFIG="+w.host.Kubeconfig())
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "kube-system") {
			w.Errorf("%v: %s", err, out)
		}
	}, ""},
	{0, 78, 78, "--username", func(w *world) {
		w.says(anonymous+" --username=password-user --password=a-password auth whoami", "password-user")
	}, ""},
	{0, 91, 91, "--token-auth-file, --client-ca-file of the server", func(w *world) {
		w.says(anonymous+" --token=a-token auth whoami", "token-user")
		w.refused(anonymous+" --token=another auth whoami", "Unauthorized")
	}, "TestCertificates of package e2e shows --client-ca-file"},
	{0, 94, 94, "the bearer token handler", nil, "names the flag of line 91 again"},
	{0, 167, 179, "InitializerConfiguration custom-pod-initializer", initializer, "the code is in full-width signs; the kind needs --enable-initializers"},
	{0, 184, 184, "?includeUninitialized", nil, "the row before uses it"},
	{0, 250, 250, "--policy-config-file", func(w *world) {
		w.says("get --raw /flagz", "policy.json")
		w.kubectl("run placed --image=nginx")
		w.ready("placed")
		w.says("describe pod placed", "Successfully assigned default/placed")
		w.gone("pod placed")
	}, "kube-scheduler's flag: balsa server reads the Policy with --scheduler-config, and this cluster has one with the predicates that document 1 lists"},
	{0, 269, 269, "cgroups-per-qos", nil, "the kubelet's flag: pods always have a control group by class, which the row of document 1, line 330, shows"},
	{0, 294, 308, "configuration of the bridge plug-in", func(w *world) {
		text, err := os.ReadFile(filepath.Join(w.host.DataDir, "agent", "cni", "net.d", "10-balsa.conflist"))
		if err != nil {
			w.Fatal(err)
		}
		for _, want := range []string{`"cniVersion"`, `"type": "bridge"`, `"isGateway": true`, `"type": "host-local"`, `"subnet"`, `"dst": "0.0.0.0/0"`} {
			if !strings.Contains(string(text), want) {
				w.Errorf("no %s in %s", want, text)
			}
		}
	}, "no manifest: the node writes its own configuration of the same plug-ins"},
}

// anonymous are flags for a client without credentials.
const anonymous = "--kubeconfig=/dev/null --server=https://127.0.0.1:6443 --insecure-skip-tls-verify"

const initializerConfiguration = `
apiVersion: admissionregistration.k8s.io/v1alpha1
kind: InitializerConfiguration
metadata:
  name: custom-pod-initializer
initializers:
  - name: podimage.example.com
    rules:
      - apiGroups:
          - ""
        apiVersions:
          - v1
        resources:
          - pods
`

// initializer: a new pod waits, unseen, until its initializer has removed its name.
func initializer(w *world) {
	w.apply(initializerConfiguration)
	type answer struct {
		out string
		err error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := w.try("run uninitialized --image=nginx")
		done <- answer{out, err}
	}()
	w.says("get --raw /api/v1/namespaces/default/pods?includeUninitialized=true", `"pending":[{"name":"podimage.example.com"}]`)
	w.gone("initializerconfigurations.admissionregistration.k8s.io custom-pod-initializer")
	if out := w.kubectl("get pods -o name"); strings.Contains(out, "uninitialized") {
		w.Errorf("the pod is seen before it is initialized: %s", out)
	}
	config, err := w.host.RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		w.Fatal(err)
	}
	req, err := http.NewRequestWithContext(w.Context(), http.MethodPatch, config.Host+"/api/v1/namespaces/default/pods/uninitialized?includeUninitialized=true", strings.NewReader(`{"metadata": {"initializers": null}}`))
	if err != nil {
		w.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	resp, err := client.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	if a := <-done; a.err != nil || resp.StatusCode != http.StatusOK {
		w.Errorf("the initializer got %s, the client %s %v", resp.Status, a.out, a.err)
	}
	w.says("get pods -o name", "pod/uninitialized")
	w.gone("pod uninitialized")
}
