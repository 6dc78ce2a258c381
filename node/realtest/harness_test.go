package realtest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd/command"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/node"
	noderuntime "github.com/balsahq/balsa/node/runtime"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins" // the child is this test binary
)

const ownNamespace = "BALSA_REALTEST_NETNS"

// TestMain runs everything in a network namespace of its own; as "containerd"
// the binary is the runtime.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "containerd" {
		if err := command.App().Run(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(ownNamespace) == "" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			fmt.Fprintln(os.Stderr, "these tests need root:", err)
			os.Exit(1)
		}
		err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), ownNamespace+"=1"))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if lo, err := netlink.LinkByName("lo"); err == nil {
		_ = netlink.LinkSetUp(lo)
	}
	os.Exit(m.Run())
}

const conflist = `{"cniVersion":"1.0.0","name":"test","plugins":[
 {"type":"bridge","bridge":"bt0","isGateway":true,"ipMasq":false,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"10.251.7.0/24"}]],"dataDir":%q}}]}`

// machine is one node with its runtime, and a fake API.
type machine struct {
	t      *testing.T
	rt     noderuntime.Config
	cfg    node.Config
	client *fake.Clientset
	agent  *node.Agent
	stop   func()
}

// newMachine starts a machine. Its cgroupParent is its own, so that tests do not meet. Each edit changes the agent's
// configuration before it starts.
func newMachine(t *testing.T, edits ...func(*node.Config)) *machine {
	t.Helper()
	return newMachineWith(t, func(*noderuntime.Config) {}, edits...)
}

// newMachineWith is newMachine with another configuration of the runtime.
func newMachineWith(t *testing.T, runtime func(*noderuntime.Config), edits ...func(*node.Config)) *machine {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runDir, err := os.MkdirTemp("/run", "bn")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(runDir, 0o711); err != nil { // root of a user namespace goes through it
		t.Fatal(err)
	}
	dir := t.TempDir()
	parent := "/" + filepath.Base(runDir)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	m := &machine{t: t, rt: noderuntime.Config{
		DataDir: filepath.Join(dir, "rt"), RunDir: runDir, BinDir: filepath.Join(dir, "bin"), CNIConfDir: filepath.Join(dir, "cni"),
		Program: program, Logger: log,
	}}
	runtime(&m.rt)
	t.Cleanup(func() {
		if err := noderuntime.Teardown(m.rt, parent); err != nil {
			t.Error(err)
		}
		if err := noderuntime.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(runDir)
	})
	if err := os.MkdirAll(m.rt.CNIConfDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.rt.CNIConfDir, "10-test.conflist"), fmt.Appendf(nil, conflist, filepath.Join(dir, "ipam")), 0o644); err != nil {
		t.Fatal(err)
	}
	m.client = fake.NewClientset()
	m.cfg = node.Config{
		NodeName: "n1", Client: m.client,
		RuntimeEndpoint: m.rt.Endpoint(), RootDir: filepath.Join(dir, "agent"), LogDir: filepath.Join(dir, "log"),
		CgroupParent: parent, NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Version: "v1.36.3", Logger: log,
		ClusterDNS: []string{"10.96.0.10"}, PodPIDs: 700, SeccompDefault: true,
	}
	for _, edit := range edits {
		edit(&m.cfg)
	}
	m.startRuntime()
	m.startAgent()
	return m
}

func (m *machine) startRuntime() {
	m.t.Helper()
	c, err := noderuntime.New(m.rt)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	m.t.Cleanup(func() { cancel(); <-done })
	select {
	case <-c.Ready():
	case err := <-done:
		done <- err
		m.t.Fatal(err)
	}
	if err := noderuntime.ImportCarried(ctx, m.rt.Socket()); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) startAgent() {
	m.t.Helper()
	m.cfg.Informers = informers.NewSharedInformerFactory(m.client, 0)
	a, err := node.New(m.cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	m.agent = a
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	m.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	}
	m.t.Cleanup(func() { m.stop() })
}

// pod makes a pod bound to the node; edit may be nil.
func (m *machine) pod(name string, edit func(*v1.Pod)) *v1.Pod {
	m.t.Helper()
	grace := int64(1)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uuid.NewUUID(), CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{
			NodeName: "n1", RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, DNSPolicy: v1.DNSClusterFirst,
			SecurityContext: &v1.PodSecurityContext{},
			Containers:      []v1.Container{sh("main", "echo up; sleep 3600")},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	if edit != nil {
		edit(p)
	}
	if _, err := m.client.CoreV1().Pods("default").Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
		m.t.Fatal(err)
	}
	return p
}

func sh(name, script string) v1.Container {
	return v1.Container{
		Name: name, Image: noderuntime.HelloImage, ImagePullPolicy: v1.PullIfNotPresent, Command: []string{"/bin/hello", "sh", "-c", script},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
	}
}

// await polls the pod until cond holds.
func (m *machine) await(name, what string, cond func(*v1.Pod) bool) *v1.Pod {
	m.t.Helper()
	var last *v1.Pod
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		p, err := m.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			p = nil
		}
		if cond(p) {
			return p
		}
		last = p
		<-time.After(5 * time.Millisecond)
	}
	events, _ := m.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
	for _, e := range events.Items {
		m.t.Logf("event %s %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
	}
	if last != nil {
		m.t.Fatalf("%s: not %s: %+v", name, what, last.Status)
	}
	m.t.Fatalf("%s: not %s", name, what)
	return nil
}

func (m *machine) awaitReady(name string) *v1.Pod {
	m.t.Helper()
	return m.await(name, "ready", func(p *v1.Pod) bool {
		if p == nil {
			return false
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodReady {
				return c.Status == v1.ConditionTrue
			}
		}
		return false
	})
}

// deletePod asks for deletion as the API server does.
func (m *machine) deletePod(name string) {
	m.t.Helper()
	p, err := m.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, p.Spec.TerminationGracePeriodSeconds
	if _, err := m.client.CoreV1().Pods("default").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) log(p *v1.Pod, container string, attempt int) string {
	b, _ := os.ReadFile(filepath.Join(m.cfg.LogDir, "pods", p.Namespace+"_"+p.Name+"_"+string(p.UID), container, fmt.Sprintf("%d.log", attempt)))
	return string(b)
}

// remains lists what is left of a pod on the machine.
func (m *machine) remains(uid types.UID) []string {
	var out []string
	for _, dir := range []string{m.cfg.LogDir + "/pods", m.cfg.RootDir + "/pods", "/sys/fs/cgroup/cpu" + m.cfg.CgroupParent,
		"/sys/fs/cgroup/memory" + m.cfg.CgroupParent + "/besteffort", "/sys/fs/cgroup" + m.cfg.CgroupParent + "/besteffort"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.Contains(e.Name(), string(uid)) {
				out = append(out, filepath.Join(dir, e.Name()))
			}
		}
	}
	return out
}

func readFile(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// awaitNothing waits until nothing of the pod is left on the machine.
func (m *machine) awaitNothing(uid types.UID) {
	m.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for len(m.remains(uid)) > 0 && time.Now().Before(deadline) {
		<-time.After(10 * time.Millisecond)
	}
	if r := m.remains(uid); len(r) > 0 {
		m.t.Errorf("left behind: %s", strings.Join(r, " "))
	}
}

// awaitEvent waits for an event with a reason and a part of its text.
func (m *machine) awaitEvent(reason, text string) {
	m.t.Helper()
	var last []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		events, err := m.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			m.t.Fatal(err)
		}
		last = nil
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return
			}
			last = append(last, e.Reason+": "+e.Message)
		}
	}
	m.t.Fatalf("no event %s with %q:\n%s", reason, text, strings.Join(last, "\n"))
}
