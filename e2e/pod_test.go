package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// TestPodRoad tests everything that a node does for one pod: init containers, volumes of every kind, variables, limits,
// hooks, probes and restarts.
func TestPodRoad(t *testing.T) {
	c := start(t)
	if out, err := c.Balsa(t.Context(), "check"); err != nil {
		t.Errorf("a new cluster fails a control of the CIS benchmark: %v\n%s", err, out)
	}
	c.apply(podRoad)
	c.kubectl("wait", "--for=condition=Ready", "pod/road", "--timeout=90s")
	exec := func(args ...string) string {
		return c.kubectl(append([]string{"exec", "road", "-c", "main", "--"}, args...)...)
	}
	for file, want := range map[string]string{
		"/scratch/from-init": "written by init",
		"/scratch/from-hook": "started",
		"/config/key":        "value of key",
		"/secret/password":   "s3cret",
		"/projected/labels":  `role="road"`,
		"/projected/cpu":     "250",
		"/projected/key":     "value of key",
		"/one-file/key":      "value of key",
		"/proc/self/cgroup":  "pod",
		"/proc/self/status":  "Seccomp:\t2",
		"/etc/hosts":         "with-alias",
		"/etc/resolv.conf":   "search default.svc.cluster.local",
	} {
		if out := exec("cat", file); !strings.Contains(out, want) {
			t.Errorf("%s holds %q, want %q in it", file, out, want)
		}
	}
	token := exec("cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	if strings.Count(token, ".") != 2 {
		t.Errorf("the service account's token is %q", token)
	}
	variables := exec("env")
	for _, want := range []string{"FROM_MAP=value of key", "FROM_SECRET=s3cret", "NODE=node-", "EXPANDED=value of key!", "KUBERNETES_SERVICE_HOST=10.96.0.1", "PREFIX_key=value of key"} {
		if !strings.Contains(variables, want) {
			t.Errorf("no %s in the environment:\n%s", want, variables)
		}
	}
	c.eventually("the memory limit is a control group's", func() error {
		return c.wants("67108864", "exec", "road", "-c", "main", "--", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true")()
	})
	c.kubectl("patch", "configmap", "settings", "-p", `{"data":{"key":"a new value"}}`)
	c.eventually("a mounted ConfigMap follows", c.wants("a new value", "exec", "road", "-c", "main", "--", "cat", "/config/key"))

	c.eventually("a container whose liveness probe fails is restarted", func() error {
		out, err := c.Kubectl(t.Context(), "get", "pod", "road", "-o", `jsonpath={.status.containerStatuses[?(@.name=="sick")].restartCount}`)
		if n, _ := strconv.Atoi(strings.TrimSpace(out)); err == nil && n == 0 {
			err = fmt.Errorf("restarted %q times", out)
		}
		return err
	})
	c.eventually("and it is told", c.wants("Liveness probe failed", "describe", "pod", "road"))
	if out := c.kubectl("get", "pod", "road", "-o", `jsonpath={.status.qosClass}`); out != "Burstable" {
		t.Errorf("QoS class %q", out)
	}
	c.kubectl("delete", "pod", "road", "--wait=true", "--timeout=60s")
	checkOwnUsers(c)
}

// TestCrashLoopBacksOff: a container that ends at once is restarted with growing pauses, and its status says so.
func TestCrashLoopBacksOff(t *testing.T) {
	c := start(t)
	c.kubectl("run", "ends", "--image=balsahq/hello:1", "--command", "--", "sh", "-c", "echo bye; exit 4")
	c.eventually("it is backed off", c.wants("CrashLoopBackOff", "get", "pod", "ends"))
	c.eventually("its last words are there", c.wants("bye", "logs", "ends"))
	c.eventually("its exit code is there", c.wants("Exit Code:    4", "describe", "pod", "ends"))
	node := c.kubectl("get", "pod", "ends", "-o", "jsonpath={.spec.nodeName}")
	c.eventually("the node counts its ends", c.wants(`kubelet_terminated_containers_total{container_type="container",exit_code="4",reason="Error"}`,
		"get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics"))
	if out := c.kubectl("get", "--raw", "/api/v1/nodes/"+node+"/proxy/logs/"); !strings.Contains(out, "pods/") || !strings.Contains(out, "containers/") {
		t.Errorf("the node's logs are %q", out)
	}
	c.kubectl("run", "done", "--image=balsahq/hello:1", "--restart=Never", "--command", "--", "sh", "-c", "exit 0")
	c.eventually("a pod that is done succeeds", c.wants("Succeeded", "get", "pod", "done", "-o", "jsonpath={.status.phase}"))
	checkMetrics(c, node)
	checkLogs(c, node)
	checkSupportBundle(c, node)
}

// checkOwnUsers: in a pod with hostUsers: false, root is another user on the host, and still reads the pod's volumes.
func checkOwnUsers(c *cluster) {
	c.kubectl("wait", "--for=condition=Ready", "pod/own-users", "--timeout=90s")
	ids := strings.Fields(c.kubectl("exec", "own-users", "--", "cat", "/proc/self/uid_map"))
	if len(ids) != 3 || ids[0] != "0" || ids[1] == "0" || ids[2] != "65536" {
		c.t.Errorf("user IDs of a pod with hostUsers: false are mapped so: %v", ids)
	}
	if out := c.kubectl("exec", "own-users", "--", "cat", "/secret/password"); out != "s3cret" {
		c.t.Errorf("its secret is %q", out)
	}
	if token := c.kubectl("exec", "own-users", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"); strings.Count(token, ".") != 2 {
		c.t.Errorf("its service account's token is %q", token)
	}
	c.kubectl("delete", "pod", "own-users", "--wait=true", "--timeout=60s")
}

const podRoad = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {key: value of key}
---
apiVersion: v1
kind: Secret
metadata: {name: secrets}
stringData: {password: s3cret}
---
apiVersion: v1
kind: Pod
metadata: {name: own-users}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: balsahq/hello:1
    volumeMounts: [{name: secret, mountPath: /secret}]
  volumes: [{name: secret, secret: {secretName: secrets, defaultMode: 0400}}]
---
apiVersion: v1
kind: Pod
metadata: {name: road, labels: {role: road}}
spec:
  terminationGracePeriodSeconds: 1
  hostAliases: [{ip: 192.0.2.7, hostnames: [with-alias]}]
  initContainers:
  - name: first
    image: balsahq/hello:1
    command: [sh, -c, "echo written by init > /scratch/from-init"]
    volumeMounts: [{name: work, mountPath: /scratch}]
  containers:
  - name: main
    image: balsahq/hello:1
    env:
    - {name: FROM_MAP, valueFrom: {configMapKeyRef: {name: settings, key: key}}}
    - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: secrets, key: password}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: EXPANDED, value: "$(FROM_MAP)!"}
    envFrom: [{prefix: PREFIX_, configMapRef: {name: settings}}]
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 250m, memory: 64Mi}}
    lifecycle:
      postStart: {exec: {command: [sh, -c, "echo started > /scratch/from-hook"]}}
      preStop: {exec: {command: [sh, -c, "echo stopping > /scratch/from-hook"]}}
    startupProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 30}
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 5, timeoutSeconds: 5}
    volumeMounts:
    - {name: work, mountPath: /scratch}
    - {name: config, mountPath: /config}
    - {name: secret, mountPath: /secret}
    - {name: projected, mountPath: /projected}
    - {name: config, mountPath: /one-file/key, subPath: key}
  - name: sick
    image: balsahq/hello:1
    env: [{name: PORT, value: "8081"}, {name: DRAIN_DELAY, value: 0s}]
    livenessProbe: {httpGet: {path: /healthz, port: 8099}, periodSeconds: 1, failureThreshold: 2}
  volumes:
  - {name: work, emptyDir: {}}
  - {name: config, configMap: {name: settings}}
  - {name: secret, secret: {secretName: secrets, defaultMode: 0400}}
  - name: projected
    projected:
      sources:
      - downwardAPI:
          items:
          - {path: labels, fieldRef: {fieldPath: metadata.labels}}
          - {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}
      - configMap: {name: settings, items: [{key: key, path: key}]}
`
