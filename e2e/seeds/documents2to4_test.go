package seeds

import (
	"path/filepath"
	"strings"
)

var document2 = []row{
	{2, 2, 4, "kubectl create deployment nginx --image nginx", func(w *world) {
		if out := w.kubectl("create deployment nginx --image nginx"); !strings.Contains(out, "deployment.apps/nginx created") {
			w.Error(out)
		}
		w.says("get deployment nginx -o jsonpath={.status.readyReplicas}", "1")
		w.says("get events", "Scaled up replica set", "Created pod: nginx-", "Successfully assigned default/nginx-", "Container started")
		w.gone("deployment nginx")
	}, ""},
	{2, 24, 24, "k8s.gcr.io/pause", nil, "the image of sandboxes is the carried balsahq/pause:1, so no registry is asked"},
}

var document3 = []row{
	{3, 24, 26, "--v=9 shows POST …/pods 201 Created", func(w *world) {
		w.says("create namespace love-test")
		w.file("love.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: love, namespace: love-test}\nspec: {containers: [{name: c, image: nginx}]}\n")
		w.says("create -f love.yaml --v=9", "POST", "/api/v1/namespaces/love-test/pods", "201 Created", "milliseconds", "pod/love created")
		w.gone("namespace love-test")
	}, ""},
	{3, 82, 82, "--leader-elect", nil, "kube-scheduler's flag: the scheduler always runs on one server, the leader; TestThreeServersTwoAgents of package e2e shows it move"},
	{3, 84, 84, "kubectl get endpoints kube-scheduler -n kube-system -o yaml", func(w *world) {
		w.says("get endpoints kube-scheduler -n kube-system -o yaml", "control-plane.alpha.kubernetes.io/leader", `"holderIdentity":"node-`, `"renewTime":"`)
		w.says("get endpoints kube-controller-manager -n kube-system -o yaml", "control-plane.alpha.kubernetes.io/leader")
	}, "renewed every hour, not every two seconds: the record is shown to readers and elects nothing"},
}

var document4 = []row{
	{4, 27, 27, "--kubelet-certificate-authority", nil, "kube-apiserver's flag: a kubelet's certificate is always verified with the cluster's CA, which certificates rotate replaces"},
	{4, 101, 159, "ClusterRole cloud-controller-manager", func(w *world) {
		w.apply(cloudControllerManager)
		w.kubectl("create clusterrolebinding cloud-controller-manager --clusterrole=cloud-controller-manager --user=cloud")
		for line, want := range map[string]string{"patch nodes/status": "yes", "delete nodes": "yes", "watch services": "yes", "create serviceaccounts": "yes", "update endpoints": "yes", "get secrets": "no", "delete services": "no"} {
			verb, resource, _ := strings.Cut(line, " ")
			if resource == "nodes/status" {
				resource = "nodes --subresource=status"
			}
			if out, _ := w.try("auth can-i " + verb + " " + resource + " -A --as=cloud"); !strings.Contains(out, want) {
				w.Errorf("can-i %s: %s", line, out)
			}
		}
	}, ""},
	{4, 189, 194, "RuntimeClass of node.k8s.io/v1beta1", func(w *world) {
		if out := w.apply(runtimeClass); !strings.Contains(out, "runtimeclass.node.k8s.io/myclass created") || !strings.Contains(out, "node.k8s.io/v1beta1 RuntimeClass is deprecated") {
			w.Error(out)
		}
		w.says("get runtimeclasses.v1.node.k8s.io myclass", "myconfiguration")
		w.says("get runtimeclasses.v1beta1.node.k8s.io myclass -o yaml", "apiVersion: node.k8s.io/v1beta1")
	}, "needs --legacy-apis"},
	{4, 201, 207, "Pod mypod with runtimeClassName", func(w *world) {
		w.apply("apiVersion: v1\nkind: Pod\nmetadata:\n  name: mypod\nspec:\n  runtimeClassName: myclass\n  containers: [{name: c, image: nginx}]\n")
		w.says("describe pod mypod", "FailedCreatePodSandBox", "myconfiguration")
		w.gone("pod mypod")
	}, "three dots are filled in; the runtime has no handler of that name, which the pod's events say, as the document says"},
	{4, 266, 266, "kubectl describe pod <pod_name>", func(w *world) {
		w.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: hooked}\nspec:\n  containers:\n  - name: main\n    image: nginx\n    lifecycle: {postStart: {exec: {command: [sh, -c, exit 1]}}}\n")
		w.says("describe pod hooked", "FailedPostStartHook")
	}, ""},
	{4, 268, 279, "events of a pod whose hook fails", func(w *world) {
		w.says("describe pod hooked", "Scheduled", "Pulling", "Pulled", "Created", "Started", "FailedPostStartHook", "Killing")
		w.gone("pod hooked")
	}, "no command: the output that the row before prints"},
}

const runtimeClass = `
apiVersion: node.k8s.io/v1beta1  # RuntimeClass is defined in the node.k8s.io API group
kind: RuntimeClass
metadata:
  name: myclass  # The name the RuntimeClass will be referenced by
  # RuntimeClass is a non-namespaced resource
handler: myconfiguration  # The name of the corresponding CRI configuration
`

const cloudControllerManager = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: cloud-controller-manager
rules:
- {apiGroups: [""], resources: [events], verbs: [create, patch, update]}
- {apiGroups: [""], resources: [nodes], verbs: ['*']}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
- {apiGroups: [""], resources: [services], verbs: [list, patch, update, watch]}
- {apiGroups: [""], resources: [serviceaccounts], verbs: [create]}
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, update, watch]}
- {apiGroups: [""], resources: [endpoints], verbs: [create, get, list, watch, update]}
`

// below is a path in the directory that rows may write to on the host.
func (w *world) below(name string) string { return filepath.Join(w.host.DataDir, name) }
