package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/host"
)

const upstreamNode = "node1"

// upstream is a node of upstream's programs and etcd. A script starts it (upstream-up.sh netns|certs|up|down|wipe) in
// its own network namespace.
type upstream struct {
	script, bin, dir string
	machine          *host.Host // only its name, to dial into the namespace
	cgroup           string
	began            time.Time
	image            string // of pods, set by shareImages
	supervised       sync.WaitGroup
	stopped          context.CancelFunc // not nil while it runs
}

// newUpstream takes the directories of the script and of the programs.
func newUpstream(scripts, bin string) (*upstream, error) {
	u := &upstream{
		script: filepath.Join(scripts, "upstream-up.sh"), bin: bin, cgroup: fmt.Sprintf("balsa-bench-%d", os.Getpid()),
		machine: &host.Host{Name: fmt.Sprintf("balsa-bench-up-%d", os.Getpid())},
	}
	for _, path := range []string{u.script, filepath.Join(bin, "kube-apiserver"), filepath.Join(bin, "etcd")} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("upstream cannot be measured: %w", err)
		}
	}
	var err error
	if u.dir, err = os.MkdirTemp("", "balsa-bench-up-"); err != nil {
		return nil, err
	}
	for _, root := range cgroupRoots() {
		if err := os.MkdirAll(filepath.Join(root, u.cgroup), 0o755); err != nil {
			return nil, errors.Join(err, u.close())
		}
	}
	return u, nil
}

// cgroupRoots returns the hierarchies of cgroup version 1, or the one of version 2.
func cgroupRoots() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return []string{root}
	}
	out, _ := filepath.Glob(root + "/*")
	return out
}

func (u *upstream) side() figures.Side { return figures.Theirs }
func (u *upstream) podImage() string   { return u.image }
func (u *upstream) nodeName() string   { return upstreamNode }
func (u *upstream) running() bool      { return u.stopped != nil }

func (u *upstream) run(ctx context.Context, steps ...string) error {
	for _, step := range steps {
		if out, err := u.command(ctx, step).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", u.script, step, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

func (u *upstream) command(ctx context.Context, step string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", u.script, step)
	cmd.Env = append(os.Environ(), "BIN="+u.bin, "DIR="+u.dir, "NS="+u.machine.Name, "NODE="+upstreamNode,
		"KUBELET_EXTRA=--cgroup-root=/"+u.cgroup)
	return cmd
}

func (u *upstream) prepare(ctx context.Context, kind startKind) (bool, error) {
	if kind != fresh && kind != booted {
		return false, nil
	}
	if err := u.stop(ctx); err != nil {
		return true, err
	}
	if kind == fresh {
		u.image = ""
		if err := u.run(ctx, "wipe"); err != nil {
			return true, err
		}
		if err := errors.Join(os.RemoveAll(filepath.Join(u.dir, "kubelet")), os.RemoveAll(filepath.Join(u.dir, "containerd"))); err != nil {
			return true, err
		}
	}
	return true, u.run(ctx, "netns", "certs")
}

func (u *upstream) stop(ctx context.Context) error {
	if u.stopped != nil {
		u.stopped()
		u.supervised.Wait()
		u.stopped = nil
	}
	err := u.run(ctx, "down")
	for unix.Unmount(filepath.Join(u.dir, "kubelet"), unix.MNT_DETACH) == nil { // the kubelet mounts its directory on itself
	}
	return err
}

func (u *upstream) exec(ctx context.Context) (time.Time, error) {
	log, err := os.Create(filepath.Join(u.dir, "up.log"))
	if err != nil {
		return time.Time{}, err
	}
	defer log.Close()
	ctx, u.stopped = context.WithCancel(ctx)
	cmd := u.command(ctx, "up")
	cmd.Stdout, cmd.Stderr = log, log
	u.began = time.Now()
	if err := cmd.Start(); err != nil {
		return u.began, err
	}
	u.supervised.Go(func() {
		_ = cmd.Wait() // ends when the last program is started
		u.supervise(ctx)
	})
	return u.began, nil
}

// supervise restarts a kubelet that started before its container runtime, as an init system would.
func (u *upstream) supervise(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
		for _, pid := range u.pids("kubelet") {
			if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); len(raw) == 0 {
				_ = u.run(ctx, "kubelet")
			}
		}
	}
}

// shareImages copies the images from Balsa's binary, so that both systems run the same pods.
func (u *upstream) shareImages(ctx context.Context, from *balsa) error {
	if u.image != "" {
		return nil
	}
	archive := filepath.Join(u.dir, "images.tar")
	theirs := []string{"-a", filepath.Join(from.host.RunDir, "containerd.sock"), "-n", "k8s.io", "images"}
	mine := []string{"-a", filepath.Join(u.dir, "containerd.sock"), "-n", "k8s.io", "images"}
	for _, args := range [][]string{
		append(theirs, "export", archive, helloImage, pauseImage),
		append(mine, "import", archive),
		append(mine, "tag", pauseImage, "registry.k8s.io/pause:3.10.2"),
	} {
		if out, err := exec.CommandContext(ctx, "ctr", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	u.image = helloImage
	return nil
}

func (u *upstream) restConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(u.dir, "admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	cfg.Dial = u.machine.Dial
	cfg.QPS, cfg.Burst = -1, -1
	return cfg, nil
}

// leading polls the two leases until they are renewed after the start.
func (u *upstream) leading(ctx context.Context) error {
	cfg, err := u.restConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		err := every(ctx, 2*time.Minute, func() bool {
			lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, name, metav1.GetOptions{})
			return err == nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(u.began)
		})
		if err != nil {
			return fmt.Errorf("%s does not lead: %w", name, err)
		}
	}
	return nil
}

func (u *upstream) pids(names ...string) []int {
	var out []int
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(u.dir, "pids", name))
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

func (u *upstream) controlPlane() []int { return u.pids("etcd0", "apiserver", "kcm", "sched") }

func (u *upstream) parts() []part {
	return []part{
		{"server and agent", u.pids("etcd0", "apiserver", "kcm", "sched", "kubelet", "proxy")},
		{"containerd", u.pids("containerd")},
	}
}

func (u *upstream) programs() []string {
	var out []string
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"} {
		out = append(out, filepath.Join(u.bin, name))
	}
	return out
}

func (u *upstream) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	faults := []error{u.stop(ctx)}
	if _, err := os.Stat("/run/netns/" + u.machine.Name); err == nil {
		if out, err := exec.CommandContext(ctx, "ip", "netns", "delete", u.machine.Name).CombinedOutput(); err != nil {
			faults = append(faults, fmt.Errorf("ip netns delete: %w: %s", err, out))
		}
	}
	for _, root := range cgroupRoots() {
		removeGroups(filepath.Join(root, u.cgroup))
	}
	return errors.Join(append(faults, os.RemoveAll(u.dir))...)
}

// removeGroups removes a control group and its children. Containers that were killed a moment ago may still be ending.
func removeGroups(dir string) {
	children, _ := os.ReadDir(dir)
	for _, child := range children {
		if child.IsDir() {
			removeGroups(filepath.Join(dir, child.Name()))
		}
	}
	_ = every(context.Background(), 5*time.Second, func() bool {
		return !errors.Is(unix.Rmdir(dir), unix.EBUSY)
	})
}
