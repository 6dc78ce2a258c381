package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestVolumesFollowThePod walks a StatefulSet with claims of the default class through what a cluster goes through, and
// then sees everything go.
func TestVolumesFollowThePod(t *testing.T) {
	c := start(t)
	c.apply(statefulStore)
	c.kubectl("rollout", "status", "statefulset/store", "--timeout=90s")
	write := func(pod, text string) {
		c.kubectl("exec", pod, "--", "sh", "-c", "echo "+text+" > /data/text && cat /data/text")
	}
	holds := func(pod, text string) error {
		out, err := c.Kubectl(t.Context(), "exec", pod, "--", "cat", "/data/text")
		if err == nil && strings.TrimSpace(out) != text {
			err = fmt.Errorf("/data/text of %s is %q, want %q", pod, out, text)
		}
		return err
	}
	write("store-0", "zero")
	write("store-1", "one")

	c.kubectl("scale", "statefulset/store", "--replicas=1")
	c.kubectl("wait", "--for=delete", "pod/store-1", "--timeout=60s")
	c.kubectl("scale", "statefulset/store", "--replicas=2")
	c.kubectl("delete", "pod", "store-0", "--wait=true", "--timeout=60s")
	c.kubectl("rollout", "status", "statefulset/store", "--timeout=90s")
	for pod, text := range map[string]string{"store-0": "zero", "store-1": "one"} {
		if err := holds(pod, text); err != nil {
			t.Error("after the pod was made anew:", err)
		}
	}

	mounted := len(volumeMounts(t, c))
	if err := c.Kill9(); err != nil {
		t.Fatal(err)
	}
	c.up()
	c.kubectl("delete", "pod", "store-1", "--wait=true", "--timeout=60s")
	c.kubectl("rollout", "status", "statefulset/store", "--timeout=90s")
	for pod, text := range map[string]string{"store-0": "zero", "store-1": "one"} {
		c.eventually("a volume outlives the server", func() error { return holds(pod, text) })
	}
	if now := volumeMounts(t, c); len(now) != mounted {
		t.Errorf("%d mounts of volumes before the restart and %d after: %v", mounted, len(now), now)
	}

	c.eventually("the node's statistics have the claim's volume", c.wants("data-store-0", "get", "--raw", "/api/v1/nodes/"+c.NodeName()+"/proxy/stats/summary"))
	c.kubectl("patch", "pvc", "data-store-0", "-p", `{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}`)
	c.eventually("a claim grows", c.wants("2Mi", "get", "pvc", "data-store-0", "-o", "jsonpath={.status.capacity.storage}"))

	c.kubectl("delete", "statefulset", "store", "--wait=true", "--timeout=60s")
	c.kubectl("delete", "pvc", "--all", "--wait=true", "--timeout=60s")
	c.eventually("volumes go with their claims", func() error {
		if out, err := c.Kubectl(t.Context(), "get", "pv", "-o", "name"); err != nil || out != "" {
			return errors.Join(err, fmt.Errorf("volumes left: %q", out))
		}
		left, err := os.ReadDir(filepath.Join(c.DataDir, "local-volumes"))
		if err != nil || len(left) != 0 {
			return errors.Join(err, fmt.Errorf("directories left: %v", left))
		}
		if m := volumeMounts(t, c); len(m) != 0 {
			return fmt.Errorf("mounts left: %v", m)
		}
		return nil
	})

	t.Run("of a pod alone", func(t *testing.T) { ephemeralVolume(&cluster{Host: c.Host, t: t}) })
	t.Run("too large", func(t *testing.T) { tooLarge(&cluster{Host: c.Host, t: t}) })
	t.Run("the class stays removed", func(t *testing.T) {
		c := &cluster{Host: c.Host, t: t}
		c.kubectl("delete", "storageclass", "balsa-local")
		if err := c.Kill9(); err != nil {
			t.Fatal(err)
		}
		c.up()
		c.eventually("the driver is back", c.wants("csi.balsa.dev", "get", "csidriver,csinode", "-o", "yaml"))
		if out := c.kubectl("get", "storageclass", "-o", "name"); out != "" {
			t.Errorf("the class that was removed is back: %s", out)
		}
	})
}

// ephemeralVolume: a generic ephemeral volume comes and goes with its pod.
func ephemeralVolume(c *cluster) {
	c.apply(`
apiVersion: v1
kind: Pod
metadata: {name: scratch}
spec:
  securityContext: {runAsUser: 1000, fsGroup: 2000}
  containers:
  - name: a
    image: balsahq/hello:1
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes:
  - name: scratch
    ephemeral:
      volumeClaimTemplate:
        spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Mi}}}
`)
	c.kubectl("wait", "--for=condition=Ready", "pod/scratch", "--timeout=60s")
	c.kubectl("exec", "scratch", "--", "sh", "-c", "echo mine > /scratch/f")
	files, err := filepath.Glob(filepath.Join(c.DataDir, "local-volumes", "*", "data", "f"))
	if err != nil || len(files) != 1 {
		c.t.Fatalf("files on the disk: %v, %v", files, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(files[0], &st); err != nil || st.Uid != 1000 || st.Gid != 2000 {
		c.t.Errorf("user 1000 of fsGroup 2000 wrote a file of %d:%d: %v", st.Uid, st.Gid, err)
	}
	c.kubectl("delete", "pod", "scratch", "--wait=true", "--timeout=60s")
	c.eventually("its claim goes with it", func() error {
		out, err := c.Kubectl(c.t.Context(), "get", "pvc,pv", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("left: %q", out)
		}
		return err
	})
}

// tooLarge: a claim for more than any node has says so, and its pod waits.
func tooLarge(c *cluster) {
	c.apply(strings.NewReplacer("name: store", "name: huge", "storage: 1Mi", "storage: 1Pi", "replicas: 2", "replicas: 1", "app: store", "app: huge").Replace(statefulStore))
	c.eventually("the pod says why it waits", c.wants("did not have enough free storage", "describe", "pod", "huge-0"))
	c.kubectl("delete", "statefulset", "huge", "--wait=true", "--timeout=60s")
	c.kubectl("delete", "pvc", "--all", "--wait=true", "--timeout=60s")
}

// volumeMounts are the mounts of volumes of this host's pods.
func volumeMounts(t *testing.T, c *cluster) (out []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, c.DataDir) && strings.Contains(point, "kubernetes.io~csi") {
			out = append(out, point)
		}
	}
	return out
}

const statefulStore = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store}
spec:
  replicas: 2
  serviceName: store
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: a
        image: balsahq/hello:1
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
`
