package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// autoscaled is a Deployment of which each pod may use twice what it requests, and an autoscaler that wants it to use half.
const autoscaled = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      containers:
      - name: hello
        image: balsahq/hello:1
        resources: {requests: {cpu: 100m}, limits: {cpu: 200m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: hello}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: hello}
  minReplicas: 1
  maxReplicas: 3
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
  behavior: {scaleDown: {stabilizationWindowSeconds: 5}}
`

// TestTopAndAutoscaling: kubectl top shows what the node and its pods use, and a Deployment grows while a pod is busy and
// shrinks when it is idle again.
func TestTopAndAutoscaling(t *testing.T) {
	c := start(t, "--metric-resolution=2s", "--horizontal-pod-autoscaler-sync-period=2s")
	c.apply(autoscaled)
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
	c.eventually("kubectl top shows the node and the pod", func() error {
		return errors.Join(c.topShows(1, "node"), c.topShows(1, "pod", "-l", "app=hello"))
	})
	c.eventually("the autoscaler knows its metric", c.wants("ValidMetricFound", "get", "hpa", "hello", "-o", "jsonpath={.status.conditions[*].reason}"))
	pod := c.firstPod()
	busy := c.inBackground("exec", pod, "--", "sh", "-c", "while [ ! -e /idle ]; do :; done")
	defer busy.end()
	c.eventually("a busy pod gets company", c.wants("3", "get", "deployment", "hello", "-o", "jsonpath={.status.readyReplicas}"))
	c.eventually("the event says why", c.wants("New size: 3; reason: cpu resource utilization (percentage of request) above target",
		"get", "events", "--field-selector=reason=SuccessfulRescale", "-o", "jsonpath={.items[*].message}"))
	c.kubectl("exec", pod, "--", "touch", "/idle")
	c.eventually("idle pods go", c.wants("1", "get", "deployment", "hello", "-o", "jsonpath={.status.replicas}"))
}

// topShows says whether kubectl top prints so many rows, each with processor time and memory.
func (c *cluster) topShows(rows int, args ...string) error {
	out, err := c.Kubectl(c.t.Context(), append([]string{"top"}, append(args, "--no-headers")...)...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		if f := strings.Fields(line); len(f) < 3 || !strings.HasSuffix(f[1], "m") || !strings.Contains(line, "Mi") {
			return fmt.Errorf("kubectl top %v: %q", args, line)
		}
	}
	if len(lines) != rows {
		return fmt.Errorf("kubectl top %v shows %d rows, want %d: %s", args, len(lines), rows, out)
	}
	return nil
}
