package seeds

import (
	"os"
	"strings"
	"time"
)

const docker = "docker's own command; what it asks for is a pod's limit of cpu: the row of line 330"

var document1 = []row{
	{1, 20, 20, "docker run -it --cpu-period --cpu-quota ubuntu /bin/bash", nil, docker},
	{1, 202, 224, "Pod test-projected-volume", func(w *world) {
		w.apply(projectedVolume) // its Secrets come with the next row: until then it waits
		w.says("get pod test-projected-volume", "ContainerCreating")
	}, ""},
	{1, 230, 230, "kubectl create secret generic user --from-file=./username.txt", func(w *world) {
		w.file("username.txt", "admin")
		w.file("password.txt", "1f2d1e2e67df")
		w.kubectl("create secret generic user --from-file=./username.txt")
		w.kubectl("create secret generic pass --from-file=./password.txt")
		w.ready("test-projected-volume")
		w.says("exec test-projected-volume -- cat /projected-volume/username.txt /projected-volume/password.txt", "admin1f2d1e2e67df")
		w.gone("pod test-projected-volume")
	}, "the Secret pass, which the pod wants too, is made alike"},
	{1, 236, 243, "Secret mysecret", func(w *world) {
		w.apply("apiVersion: v1\nkind: Secret\nmetadata:\n  name: mysecret\ntype: Opaque\ndata:\n  user: YWRtaW4=\n  pass: MWYyZDFlMmU2N2Rm\n")
		w.says("get secret mysecret -o go-template={{.data.user|base64decode}}/{{.data.pass|base64decode}}", "admin/1f2d1e2e67df")
	}, ""},
	{1, 261, 284, "Pod test-downwardapi-volume", func(w *world) {
		w.apply(downward)
		w.ready("test-downwardapi-volume")
		w.says("exec test-downwardapi-volume -- cat /podInfo/labels", `cluster="test-cluster1"`, `rack="rack-22"`, `zone="us-est-coast"`)
		w.gone("pod test-downwardapi-volume")
	}, "three dots stand for the container's image and command"},
	{1, 298, 320, "Pod two-containers", func(w *world) {
		w.refused("apply -f "+w.file("printed.yaml", twoContainers("      ", "/data")), "unknown field")
		w.apply(twoContainers("    ", w.below("data")))
		defer os.RemoveAll(w.below("data"))
		w.says("get pod two-containers -o jsonpath={.status.containerStatuses[?(@.name==\"debian-container\")].state.terminated.exitCode}", "0")
		w.says("exec two-containers -c nginx-container -- cat /usr/share/nginx/html/index.html", "Hello from the debian container")
		w.gone("pod two-containers")
	}, "the indentation puts command and args into a volume mount, and a space is in the file's name: both are mended; /data is a directory of the test"},
	{1, 330, 341, "requests and limits of memory and cpu", func(w *world) {
		w.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: limited}\nspec:\n  containers:\n  - name: app\n    image: nginx\n    resources:\n      requests:\n        memory: \"64Mi\"\n        cpu: \"250m\"\n      limits:\n        memory: \"128Mi\"\n        cpu: \"500m\"\n")
		w.ready("limited")
		w.says("get pod limited -o jsonpath={.status.qosClass}", "Burstable")
		w.says("exec limited -- cat /proc/self/cgroup", "burstable")
		w.gone("pod limited")
	}, "three dots are filled in"},
	{1, 377, 386, "livenessProbe", func(w *world) {
		w.refused("apply -f "+w.file("printed.yaml", probed("        ")), "unknown field")
		w.apply(probed("      "))
		w.ready("probed")
		w.gone("pod probed")
	}, "the indentation puts the delay and the period into httpGet: mended; the port is the image's"},
	{1, 406, 422, "PodPreset allow-database", func(w *world) {
		w.apply(podPreset)
		w.kubectl("run frontend --image=nginx --labels=role=frontend")
		w.ready("frontend")
		w.says("exec frontend -- env", "DB_PORT=6379")
		w.says("get pod frontend -o jsonpath={.spec.containers[0].volumeMounts}", "/cache")
		w.gone("podpreset allow-database")
		w.gone("pod frontend")
	}, "needs --enable-pod-presets"},
	{1, 514, 547, "NetworkPolicy test-network-policy", func(w *world) {
		w.apply(networkPolicy)
		w.kubectl("run db --image=nginx --labels=role=db --env=PORT=6379")
		w.kubectl("run friend --image=nginx --labels=role=frontend")
		w.kubectl("run stranger --image=nginx --labels=role=stranger")
		w.ready("db", "friend", "stranger")
		ip := w.kubectl("get pod db -o jsonpath={.status.podIP}")
		w.says("exec friend -- wget http://"+ip+":6379", "Hello")
		if out, err := w.within(3*time.Second, "exec stranger -- wget http://"+ip+":6379"); err == nil {
			w.Errorf("a pod that the policy does not name reaches the database: %s", out)
		}
		w.gone("networkpolicy test-network-policy")
		w.gone("pod db friend stranger")
	}, ""},
	{1, 573, 607, "StatefulSet web", func(w *world) {
		w.kubectl("create service clusterip nginx --clusterip=None")
		w.apply(statefulSet)
		w.says("rollout status statefulset web --timeout=50s", "complete")
		w.says("get pvc", "www-web-0", "www-web-1", "Bound", "10Gi")
		w.says("exec web-0 -- nslookup web-1.nginx.default.svc.cluster.local", "10.244.")
		w.kubectl(`patch statefulset web -p {"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}}}}`)
		w.gone("statefulset web")
		w.gone("service nginx")
		w.gone("pvc --all")
	}, "spec.updateStrategy.rollingUpdate.partition is of line 702"},
	{1, 619, 627, "for { … } of a controller", nil, "pseudo-code in Go, which no cluster runs"},
	{1, 637, 656, "Deployment nginx-deployment", func(w *world) {
		w.refused("apply -f "+w.file("printed.yaml", deployment("//")), "error")
		w.file("deployment.yaml", deployment("#"))
		w.kubectl("apply -f deployment.yaml")
		w.says("rollout status deploy nginx-deployment -n default --timeout=50s", "successfully rolled out")
	}, "a comment that begins with // is no YAML: mended to #"},
	{1, 666, 674, "strategy RollingUpdate", func(w *world) {
		w.kubectl(`patch deploy nginx-deployment -p {"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":1,"maxUnavailable":1}}}}`)
		w.says("describe deploy nginx-deployment", "1 max unavailable, 1 max surge")
	}, "three dots are filled in"},
	{1, 679, 679, "kubectl describe deploy, rollout status deploy", func(w *world) {
		w.says("describe deploy nginx-deployment -n default", "RollingUpdate", "nginx:1.7.9")
		w.says("rollout status deploy nginx-deployment -n default", "successfully rolled out")
	}, ""},
	{1, 680, 680, "kubectl rollout undo deploy", func(w *world) {
		w.kubectl("set image deploy nginx-deployment nginx=nginx:1.9.1")
		w.says("rollout status deploy nginx-deployment", "successfully rolled out")
		w.kubectl("rollout undo deploy nginx-deployment --to-revision=1")
		w.says("get deploy nginx-deployment -o jsonpath={.spec.template.spec.containers[0].image}", "nginx:1.7.9")
		w.kubectl("rollout undo deploy nginx-deployment")
		w.says("get deploy nginx-deployment -o jsonpath={.spec.template.spec.containers[0].image}", "nginx:1.9.1")
	}, ""},
	{1, 681, 681, "kubectl rollout history, apply -record", func(w *world) {
		if out := w.kubectl("apply -f deployment.yaml -record"); !strings.Contains(out, "deprecated") {
			w.Error(out)
		}
		w.says("rollout history deploy nginx-deployment", "REVISION", "kubectl apply --filename=deployment.yaml --record=true")
	}, ""},
	{1, 682, 682, "kubectl rollout pause, resume", func(w *world) {
		w.kubectl("rollout pause deploy nginx-deployment -n default")
		w.says("get deploy nginx-deployment -o jsonpath={.spec.paused}", "true")
		w.kubectl("rollout resume deploy nginx-deployment -n default")
		w.gone("deploy nginx-deployment")
	}, ""},
	{1, 729, 733, "backoffLimit, activeDeadlineSeconds, parallelism, completions of a Job", func(w *world) {
		w.apply("apiVersion: batch/v1\nkind: Job\nmetadata: {name: job}\nspec:\n backoffLimit: 5 #默认是6\n activeDeadlineSeconds: 100 #单位：秒\n parallelism: 2\n completions: 4\n template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox, args: [sleep, '0']}]}}\n")
		w.says("get job job -o jsonpath={.status.succeeded}/{.status.conditions[*].type}", "4/", "Complete")
		w.gone("job job")
	}, "a comment that begins with // is no YAML: mended to #; the template is filled in"},
	{1, 851, 873, "Role example-role and RoleBinding", func(w *world) {
		w.kubectl("create namespace mynamespace")
		w.apply(exampleRole)
		w.may("yes", "list pods -n mynamespace")
		w.may("no", "delete pods -n mynamespace")
		w.may("no", "list pods -n default")
	}, ""},
	{1, 881, 901, "ClusterRole example-clusterrole and ClusterRoleBinding", func(w *world) {
		w.apply(exampleClusterRole)
		w.may("yes", "watch pods -n default")
		w.may("no", "create pods -n default")
	}, ""},
	{1, 919, 923, "ServiceAccount example-user", func(w *world) {
		w.apply("apiVersion: v1 \nkind: ServiceAccount \nmetadata: \n  namespace: mynamespace \n  name: example-user\n")
		w.says(anonymous+" --token="+strings.TrimSpace(w.kubectl("create token example-user -n mynamespace"))+" auth whoami",
			"system:serviceaccount:mynamespace:example-user", "system:serviceaccounts:mynamespace")
		w.says("get serviceaccount example-user -n mynamespace -o jsonpath={.secrets[*].name}", "example-user-token-")
		w.says("get secrets -n mynamespace -o jsonpath={.items[*].data}", `"token":"`, `"ca.crt":"`, `"namespace":"`)
	}, "line 910 says that a Secret is made with the account, which needs --legacy-service-account-tokens"},
	{1, 934, 934, "kubectl create -f, replace -f, set image, edit", func(w *world) {
		w.file("config.yaml", deployment("#"))
		w.kubectl("create -f config.yaml")
		w.file("config.yaml", strings.Replace(deployment("#"), "replicas: 2", "replicas: 1", 1))
		w.kubectl("replace -f config.yaml")
		w.kubectl("set image deploy nginx-deployment nginx=nginx:1.9.1")
		cmd := w.host.KubectlCommand(w.Context(), "edit", "deploy", "nginx-deployment")
		cmd.Env = append(cmd.Env, "KUBE_EDITOR=sed -i s/1.9.1/1.7.9/")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "edited") {
			w.Errorf("%v: %s", err, out)
		}
		w.says("get deploy nginx-deployment -o jsonpath={.spec.replicas}{.spec.template.spec.containers[0].image}", "1nginx:1.7.9")
	}, "sed is the editor"},
	{1, 936, 936, "kubectl apply -f", func(w *world) {
		w.says("apply -f config.yaml", "deployment.apps/nginx-deployment configured")
		w.gone("deploy nginx-deployment")
	}, ""},
	{1, 945, 947, "CronJob of batch/v2alpha1", func(w *world) {
		out := w.apply("apiVersion: batch/v2alpha1\nkind: CronJob\nmetadata: {name: old}\nspec: {schedule: '*/5 * * * *', concurrencyPolicy: Forbid, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox}]}}}}}\n")
		if !strings.Contains(out, "cronjob.batch/old created") || !strings.Contains(out, "batch/v2alpha1 CronJob is deprecated") {
			w.Error(out)
		}
		w.says("get cronjobs.v1.batch old -o yaml", "apiVersion: batch/v1", "concurrencyPolicy: Forbid")
		w.kubectl("delete -f config.yaml")
	}, "needs --legacy-apis; three dots are filled in"},
	{1, 967, 977, "CustomResourceDefinition of apiextensions.k8s.io/v1beta1", func(w *world) {
		if out := w.apply(definition); !strings.Contains(out, "networks.samplecrd.k8s.io created") {
			w.Error(out)
		}
		w.says("get customresourcedefinitions.v1.apiextensions.k8s.io networks.samplecrd.k8s.io -o jsonpath={.status.conditions[?(@.type==\"Established\")].status}", "True")
		w.says("apply -f config.yaml", "unchanged")
	}, "needs --legacy-apis"},
	{1, 983, 989, "Network example-network", func(w *world) {
		w.file("network.yaml", "apiVersion: samplecrd.k8s.io/v1\nkind: Network\nmetadata:\n  name: example-network\nspec:\n  cidr: \"192.168.0.0/16\"\n  gateway: \"192.168.0.1\"\n")
		w.says("apply -f network.yaml", "network.samplecrd.k8s.io/example-network")
		w.says("get networks example-network -o jsonpath={.spec}", `"cidr":"192.168.0.0/16"`, `"gateway":"192.168.0.1"`)
		w.kubectl("delete -f config.yaml")
	}, ""},
	{1, 1019, 1025, "nodeSelector disktype: ssd", func(w *world) {
		w.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: selective}\nspec:\n nodeSelector:\n   disktype: ssd\n containers: [{name: c, image: nginx}]\n")
		w.says("describe pod selective", "FailedScheduling", "didn't match Pod's node affinity/selector")
		w.kubectl("label nodes --all disktype=ssd")
		w.ready("selective")
		w.gone("pod selective")
	}, "three dots are filled in"},
	{1, 1035, 1040, "hostAliases", func(w *world) {
		w.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: aliases}\nspec:\n  hostAliases:\n  - ip: \"10.1.2.3\"\n    hostnames:\n    - \"foo.remote\"\n    - \"bar.remote\"\n  containers: [{name: c, image: nginx}]\n")
		w.ready("aliases")
		w.says("exec aliases -- cat /etc/hosts", "10.1.2.3\tfoo.remote\tbar.remote")
		w.gone("pod aliases")
	}, "the pod is filled in"},
	{1, 1062, 1076, "Pod lifecycle-demo", func(w *world) {
		w.apply(lifecycle)
		w.ready("lifecycle-demo")
		w.says("exec lifecycle-demo -- cat /usr/share/message", "Hello from the postStart handler")
		w.gone("pod lifecycle-demo")
	}, ""},
	{1, 1084, 1113, "kubectl get, describe, apply, delete, exec, logs", commands, "names stand in the brackets"},
}

// may asks whether example-user may do something.
func (w *world) may(want, what string) {
	w.Helper()
	if out, _ := w.try("auth can-i " + what + " --as=example-user"); !strings.Contains(out, want) {
		w.Errorf("can-i %s: %s, want %s", what, out, want)
	}
}

// commands are those of the list at the document's end, in its order.
func commands(w *world) {
	w.kubectl("create namespace work")
	w.file("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: worker, namespace: work}\nspec: {containers: [{name: main, image: nginx}]}\n")
	w.says("apply -f pod.yaml", "pod/worker")
	w.says("get pod worker -n work", "Running")
	w.says("get pod -A", "worker")
	w.says("get cm -A", "kube-root-ca.crt")
	w.says("get svc -A", "kubernetes")
	w.kubectl("create configmap settings -n work --from-literal=key=value")
	w.says("describe configmap settings -n work", "key:", "value")
	w.says("get pods --all-namespaces -o wide", "worker", "10.244.", w.host.NodeName())
	if out := w.kubectl("exec worker -n work -c main -it sh"); !strings.Contains(out, "deprecated") {
		w.Error(out)
	}
	w.says("get event -n work", "Container started")
	w.says("logs worker -n work -c main", "listening on")
	w.follows("logs worker -n work -c main -f", "listening on")
	w.says("get pod worker -n work -o yaml", "kind: Pod", "nodeName: ")
	w.says("get pod worker -n work -o json", `"kind": "Pod"`)
	w.says("delete pod worker -n work --now", `pod "worker" deleted`)
	w.says("delete ns work", `namespace "work" deleted`)
}

// follows runs a command that does not end until its output contains text.
func (w *world) follows(line, text string) {
	w.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		w.Fatal(err)
	}
	defer out.Close()
	cmd := w.host.KubectlCommand(w.Context(), strings.Fields(line)...)
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	in.Close()
	if err != nil {
		w.Fatal(err)
	}
	seen, buffer := "", make([]byte, 4096)
	for err == nil && !strings.Contains(seen, text) {
		var n int
		n, err = out.Read(buffer)
		seen += string(buffer[:n])
	}
	if err != nil {
		w.Errorf("kubectl %s ended without %q: %s", line, text, seen)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
}
