package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// refusedStart starts a server that has to refuse to start, and returns its last line.
func refusedStart(c *cluster, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := c.Balsa(ctx, append(append([]string{"server"}, c.Flags()...), args...)...)
	if err == nil {
		c.t.Fatalf("balsa server %s ended without an error:\n%s", strings.Join(args, " "), out)
	}
	if ctx.Err() != nil {
		c.t.Fatalf("balsa server %s did not give up:\n%s", strings.Join(args, " "), out)
	}
	return lastLine(err.Error())
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func (c *cluster) mustSay(got string, wants ...string) {
	c.t.Helper()
	for _, want := range wants {
		if !strings.Contains(got, want) {
			c.t.Errorf("the message does not say %q: %s", want, got)
		}
	}
}

func TestBadFlagsAreRefusedInOneLine(t *testing.T) {
	c := newHost(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) string {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--config=" + file
	}
	for name, test := range map[string]struct {
		args  []string
		wants []string
	}{
		"unknown flag":         {[]string{"--no-such-flag"}, []string{"unknown flag: --no-such-flag"}},
		"port out of range":    {[]string{"--port=99999"}, []string{"--port 99999", "from 1 to 65535"}},
		"overlapping networks": {[]string{"--service-cidr=10.244.0.0/16", "--cluster-dns=10.244.0.10"}, []string{"overlap"}},
		"DNS outside services": {[]string{"--cluster-dns=192.0.2.1"}, []string{"--cluster-dns", "10.96.0.0/16"}},
		"relative directory":   {[]string{"--data-dir=here"}, []string{"--data-dir", "absolute"}},
		"no such sysctl":       {[]string{"--allowed-unsafe-sysctls=vm.swappiness"}, []string{"--allowed-unsafe-sysctls", `"vm.swappiness"`, "not known to be of a namespace"}},
		"no process for a pod": {[]string{"--pod-max-pids=0"}, []string{"--pod-max-pids 0", "-1 for no limit"}},
		"malformed file":       {[]string{write("port: [")}, []string{"config.yaml", "not valid YAML"}},
	} {
		t.Run(name, func(t *testing.T) {
			(&cluster{Host: c.Host, t: t}).mustSay(refusedStart(&cluster{Host: c.Host, t: t}, test.args...), test.wants...)
		})
	}
	c.mustSay(refusedStart(c, write("prot: 1\n")), "unknown setting", `"prot"`)
	c.mustSay(refusedStart(c, "--config="+file+".missing"), "no such file")
}

func TestOnlyRootMayStart(t *testing.T) {
	c := newHost(t)
	path, err := filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join("/tmp", filepath.Base(c.DataDir)+"-balsa")
	if err := os.Link(path, copied); err != nil {
		if out, err := exec.Command("cp", path, copied).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	t.Cleanup(func() { os.Remove(copied) })
	out, err := c.Command(t.Context(), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copied, "server").CombinedOutput()
	if err == nil {
		t.Fatalf("started without root:\n%s", out)
	}
	c.mustSay(lastLine(string(out)), "root is needed", "sudo")
}

func TestTakenPortIsNamed(t *testing.T) {
	c := start(t)
	other := newHost(t)
	// Another installation in the same network: the ports collide.
	cmd := c.Command(t.Context(), binary, append([]string{"server"}, other.Flags()...)...)
	cmd.Env = append(cmd.Env, "BALSA_DATA_DIR="+other.DataDir, "BALSA_RUN_DIR="+other.RunDir)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("started on taken ports:\n%s", out)
	}
	c.mustSay(string(out), "port 6443 is taken", "--port", "port 10250 is taken", "--kubelet-port")
	c.mustSay(refusedStart(c), "balsa runs already", "balsa down")
}

// damage stops a cluster that holds one object, changes its files, and returns the last line of the refused next start.
// The start must not change the damaged directory.
func damage(t *testing.T, change func(c *cluster, raft string)) (*cluster, string) {
	t.Helper()
	c := start(t)
	c.kubectl("create", "configmap", "precious", "--from-literal=a=b")
	if err := c.Kill9(); err != nil {
		t.Fatal(err)
	}
	change(c, filepath.Join(c.DataDir, "server", "raft"))
	return c, refusedStart(c)
}

// largest returns the largest regular file below dir: the log.
func largest(t *testing.T, dir string) string {
	t.Helper()
	var best string
	var size int64 = -1
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() && info.Size() > size {
			best, size = path, info.Size()
		}
		return err
	})
	if err != nil || best == "" {
		t.Fatalf("no file below %s (%v)", dir, err)
	}
	return best
}

func TestTruncatedLogIsRefusedAndKept(t *testing.T) {
	var size int64
	var log string
	c, msg := damage(t, func(c *cluster, raft string) {
		log = largest(t, raft)
		// A segment is preallocated; more than this part of it is written.
		size = 16 << 10
		if err := os.Truncate(log, size); err != nil {
			t.Fatal(err)
		}
	})
	c.mustSay(msg, filepath.Base(log))
	if info, err := os.Stat(log); err != nil || info.Size() != size {
		t.Errorf("the damaged log was changed: %v %v", info, err)
	}
}

func TestReadOnlyDataDirectoryIsNamed(t *testing.T) {
	c := newHost(t)
	mounts := [][]string{{"mount", "-t", "tmpfs", "-o", "ro", "tmpfs", c.DataDir}}
	for _, m := range mounts {
		if out, err := exec.Command(m[0], m[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("umount", c.DataDir).Run() })
	c.mustSay(refusedStart(c), "read-only")
}

func TestManifestsThatUpstreamRefusesAreRefused(t *testing.T) {
	c := start(t)
	for name, test := range map[string]struct{ manifest, want string }{
		"unknown field":     {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, image: b, imagee: c}]}", `unknown field "spec.containers[0].imagee"`},
		"no containers":     {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: []}", "spec.containers: Required value"},
		"bad name":          {"apiVersion: v1\nkind: Pod\nmetadata: {name: X_Y}\nspec: {containers: [{name: a, image: b}]}", "a lowercase RFC 1123 subdomain"},
		"selector mismatch": {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: a, image: b}]}}}", "`selector` does not match template `labels`"},
		"unknown kind":      {"apiVersion: v1\nkind: Pood\nmetadata: {name: x}", `no matches for kind "Pood" in version "v1"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{Host: c.Host, t: t}
			path := filepath.Join(t.TempDir(), "m.yaml")
			if err := os.WriteFile(path, []byte(test.manifest), 0o600); err != nil {
				t.Fatal(err)
			}
			c.mustSay(c.refused("apply", "-f", path), test.want)
		})
	}
}

func TestPodsThatCannotWorkSayWhy(t *testing.T) {
	c := start(t)
	c.apply(`
apiVersion: v1
kind: Pod
metadata: {name: no-such-image}
spec: {containers: [{name: a, image: "127.0.0.1:1/none:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: probe-hangs}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: a
    image: balsahq/hello:1
    readinessProbe: {exec: {command: [sleep, infinity]}, timeoutSeconds: 1, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: ignores-term}
spec:
  terminationGracePeriodSeconds: 2
  containers: [{name: a, image: balsahq/hello:1, env: [{name: DRAIN_DELAY, value: 1h}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: unsafe-sysctl}
spec:
  securityContext: {sysctls: [{name: kernel.msgmax, value: "10000000000"}]}
  containers: [{name: a, image: "balsahq/hello:1"}]
---
apiVersion: v1
kind: Pod
metadata: {name: fills-volume}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: a
    image: balsahq/hello:1
    command: [sh, -c, "cat /bin/hello > /work/file; sleep 3600"]
    volumeMounts: [{name: work, mountPath: /work}]
  volumes: [{name: work, emptyDir: {sizeLimit: 1Mi}}]
---
apiVersion: v1
kind: Pod
metadata: {name: fills-disk}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: a
    image: balsahq/hello:1
    command: [sh, -c, "cat /bin/hello > /file; sleep 3600"]
    resources: {limits: {ephemeral-storage: 1Mi}}
`)
	c.eventually("a sysctl that is not allowed is named", c.wants("Failed SysctlForbidden",
		"get", "pod", "unsafe-sysctl", "-o", "jsonpath={.status.phase} {.status.reason}"))
	c.kubectl("delete", "pod", "unsafe-sysctl", "--wait=true", "--timeout=60s")
	c.eventually("a missing image is named", c.wants("ErrImagePull", "describe", "pod", "no-such-image"))
	c.eventually("and backed off", c.wants("ImagePullBackOff", "get", "pod", "no-such-image"))
	c.eventually("a hanging probe is named", c.wants("Readiness probe failed", "describe", "pod", "probe-hangs"))
	c.kubectl("wait", "--for=condition=Ready", "pod/ignores-term", "--timeout=60s")
	began := time.Now()
	c.kubectl("delete", "pod", "ignores-term", "--wait=true", "--timeout=90s")
	if took := time.Since(began); took < 2*time.Second || took > time.Minute {
		t.Errorf("a container that ignores SIGTERM went after %s, want its grace of 2 s and little more", took)
	}
	for pod, why := range map[string]string{"fills-volume": `Failed Evicted Usage of EmptyDir volume "work" exceeds the limit "1Mi".`,
		"fills-disk": "Failed Evicted Pod ephemeral local storage usage exceeds the total limit of containers 1Mi."} {
		c.eventually(pod+" is evicted", c.wants(why, "get", "pod", pod, "-o", "jsonpath={.status.phase} {.status.reason} {.status.message}"))
	}
	c.kubectl("delete", "pod", "no-such-image", "probe-hangs", "fills-volume", "fills-disk", "--wait=true", "--timeout=60s")
}
