package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	criapi "k8s.io/cri-api/pkg/apis"

	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/nodetest"
	"github.com/balsahq/balsa/node/staticpod"
)

// noCgroups is a machine without control groups.
type noCgroups struct{}

func (noCgroups) Init(cgroup.Limits) error                                       { return nil }
func (noCgroups) SetBurstable(uint64) error                                      { return nil }
func (noCgroups) Path(types.UID, v1.PodQOSClass) string                          { return "/none" }
func (noCgroups) Remove(types.UID) error                                         { return nil }
func (noCgroups) AllPods() (cgroup.Memory, error)                                { return cgroup.Memory{}, errors.New("none") }
func (noCgroups) Processes(types.UID, v1.PodQOSClass) (int64, error)             { return 0, errors.New("none") }
func (noCgroups) Pods() []types.UID                                              { return nil }
func (noCgroups) Read(types.UID, v1.PodQOSClass) (cgroup.Limits, error)          { return cgroup.Limits{}, nil }
func (noCgroups) MemoryUsage(types.UID, v1.PodQOSClass) (int64, error)           { return 0, nil }
func (noCgroups) Apply(types.UID, v1.PodQOSClass, cgroup.Limits) (string, error) { return "/none", nil }

// bench is an agent with a runtime and an API in memory, in fake time.
type bench struct {
	t      *testing.T
	rt     *nodetest.Runtime
	client *fake.Clientset
	agent  *Agent
	dir    string
	stop   func()
	// prepare changes an agent before it runs; may be nil.
	prepare func(*Agent)
}

func onBench(t *testing.T, test func(*bench)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, rt: nodetest.New(), client: fake.NewClientset(), dir: dir}
		b.start()
		test(b)
		b.stop()
	})
}

func (b *bench) start() {
	a, err := New(Config{
		NodeName: "n1", Client: b.client, Informers: informers.NewSharedInformerFactory(b.client, 0),
		Connect: func(context.Context) (criapi.RuntimeService, criapi.ImageManagerService, error) {
			return b.rt, b.rt, nil
		},
		RootDir: b.dir + "/agent", LogDir: b.dir + "/log", NodeIPs: []net.IP{net.IPv4(10, 0, 0, 1)}, Version: "v1.36.3",
		StaticPodDir: b.dir, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	a.cgroups = noCgroups{}
	// Fake time stands still while inotify is read.
	a.watchDir = func(string) (<-chan fsnotify.Event, func()) { return nil, func() {} }
	a.followPlugins = func(ctx context.Context) error { <-ctx.Done(); return nil }
	a.followDevices, a.servePodResources = a.followPlugins, a.followPlugins
	a.memoryEvents = func(ctx context.Context, _ func()) { <-ctx.Done() }
	if b.prepare != nil {
		b.prepare(a)
	}
	b.agent = a
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
		b.agent.cfg.Informers.Shutdown()
	}
	b.wait(0)
	<-a.Connected()
}

// wait lets fake time pass.
func (b *bench) wait(d time.Duration) {
	time.Sleep(d + time.Second)
	synctest.Wait()
}

func (b *bench) run(p *v1.Pod) {
	b.t.Helper()
	p.Spec.NodeName = "n1"
	if _, err := b.client.CoreV1().Pods(p.Namespace).Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) get(name string) *v1.Pod {
	b.t.Helper()
	p, err := b.client.CoreV1().Pods("ns").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		if !apierrors.IsNotFound(err) {
			b.t.Fatal(err)
		}
		return nil
	}
	return p
}

func (b *bench) delete(name string, grace int64) {
	b.t.Helper()
	p := b.get(name)
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	if _, err := b.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) count(entry string) int {
	n := 0
	for _, l := range b.rt.Log() {
		if l == entry {
			n++
		}
	}
	return n
}

func TestNodeIsRegisteredAndReady(t *testing.T) {
	onBench(t, func(b *bench) {
		n, err := b.client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := false
		for _, c := range n.Status.Conditions {
			ready = ready || c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		}
		if !ready || n.Labels[v1.LabelHostname] != "n1" || n.Status.Allocatable.Pods().Value() != 110 ||
			n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 || n.Status.NodeInfo.ContainerRuntimeVersion != "memory://1" {
			t.Errorf("node: %+v", n)
		}
		writes := func() int {
			n := 0
			for _, a := range b.client.Actions() {
				if a.GetResource().Resource == "nodes" && a.GetVerb() == "patch" {
					n++
				}
			}
			return n
		}
		before := writes()
		b.wait(4 * time.Minute)
		if writes() != before {
			t.Error("the status is written though nothing changed")
		}
		b.wait(2 * time.Minute)
		if writes() != before+1 {
			t.Error("the status is not written after five minutes")
		}
		l, err := b.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(context.Background(), "n1", metav1.GetOptions{})
		if err != nil || time.Since(l.Spec.RenewTime.Time) > leaseInterval {
			t.Errorf("lease: %+v %v", l, err)
		}
	})
}

// TestAPodStartsWhenAnObjectOfItsVolumesAppears: the delay before the next try has grown to seconds by then, and does not
// hold the pod back.
func TestAPodStartsWhenAnObjectOfItsVolumesAppears(t *testing.T) {
	onBench(t, func(b *bench) {
		p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
		mode := int32(0o644)
		p.Spec.Volumes = []v1.Volume{{Name: "conf", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "conf"}, DefaultMode: &mode}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "conf", MountPath: "/conf"}}
		b.run(p)
		b.wait(30 * time.Second)
		if phase := b.get("p").Status.Phase; phase != v1.PodPending {
			t.Fatalf("the pod is %s without its ConfigMap", phase)
		}
		conf := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "conf"}, Data: map[string]string{"a": "b"}}
		if _, err := b.client.CoreV1().ConfigMaps("ns").Create(context.Background(), conf, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.wait(0)
		if phase := b.get("p").Status.Phase; phase != v1.PodRunning {
			t.Errorf("the pod is %s a second after its ConfigMap appeared", phase)
		}
	})
}

func TestDeletedPodGoesAfterItsGracePeriod(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("c0", nodetest.Run{Stubborn: true})
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		b.wait(0)
		b.delete("p", 20)
		b.wait(15 * time.Second)
		if b.get("p") == nil {
			t.Fatal("gone before its grace period")
		}
		b.wait(6 * time.Second)
		if b.get("p") != nil {
			t.Fatal("still there after its grace period")
		}
		log := b.rt.Log()
		if i, j := slices.Index(log, "exit c0 137"), slices.Index(log, "stop-sandbox p"); i < 0 || j < i {
			t.Errorf("order: %v", log)
		}
		b.wait(time.Minute)
		if n := b.count("start c0"); n != 1 || len(b.agent.Pods()) != 0 {
			t.Errorf("%d starts, %d pods", n, len(b.agent.Pods()))
		}
	})
}

func TestShorterGracePeriodCutsTheWait(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("c0", nodetest.Run{Stubborn: true})
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		b.wait(0)
		b.delete("p", 3600)
		b.wait(10 * time.Second)
		b.delete("p", 1)
		b.wait(3 * time.Second)
		if b.get("p") != nil {
			t.Errorf("still there: %v", b.rt.Log())
		}
	})
}

func TestPodEndsWithItsContainers(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("i0", nodetest.Run{Lasts: time.Second})
		b.rt.Script("c0", nodetest.Run{Lasts: 5 * time.Second})
		b.run(nodetest.Pod(v1.RestartPolicyNever, 1, 1))
		b.wait(0)
		b.wait(10 * time.Second)
		p := b.get("p")
		if p.Status.Phase != v1.PodSucceeded {
			t.Errorf("status: %+v", p.Status)
		}
		want := []string{"sandbox p", "start i0", "exit i0 0", "start c0", "exit c0 0", "stop-sandbox p"}
		if got := b.rt.Log(); !slices.Equal(got, want) {
			t.Errorf("course: %v", got)
		}
	})
}

func TestDeadSandboxIsMadeAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("i0", nodetest.Run{Lasts: time.Second})
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 1, 1))
		b.wait(3 * time.Second)
		b.rt.KillSandbox("p")
		b.wait(20 * time.Second)
		if b.count("sandbox p") != 2 || b.count("start i0") != 2 || b.count("start c0") != 2 {
			t.Errorf("course: %v", b.rt.Log())
		}
		if p := b.get("p"); p.Status.Phase != v1.PodRunning || p.Status.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("status: %+v", p.Status)
		}
	})
}

func TestContainersOutliveTheAgent(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		b.wait(0)
		before := b.get("p").Status.ContainerStatuses[0].ContainerID
		b.stop()
		b.start()
		b.wait(time.Minute)
		after := b.get("p").Status.ContainerStatuses[0]
		if after.ContainerID != before || b.count("start c0") != 1 {
			t.Errorf("%s then %s: %v", before, after.ContainerID, b.rt.Log())
		}
	})
}

func TestPodThatDoesNotFitIsRejected(t *testing.T) {
	onBench(t, func(b *bench) {
		p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
		p.Spec.NodeSelector = map[string]string{"moon": "full"}
		b.run(p)
		b.wait(0)
		if s := b.get("p").Status; s.Phase != v1.PodFailed || s.Reason != "NodeAffinity" {
			t.Errorf("status: %+v", s)
		}
		if len(b.rt.Log()) != 0 {
			t.Errorf("course: %v", b.rt.Log())
		}
	})
}

func TestNodeIsSeenAsOthersChangeIt(t *testing.T) {
	onBench(t, func(b *bench) {
		n := b.agent.Node().DeepCopy()
		n.Labels["disk"] = "fast"
		if _, err := b.client.CoreV1().Nodes().Update(context.Background(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
		p.Spec.NodeSelector = map[string]string{"disk": "fast"}
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{"example.com/of-the-cluster": resource.MustParse("1")}
		b.run(p)
		b.wait(3 * time.Second)
		if got := b.get(p.Name); got.Status.Phase != v1.PodRunning {
			t.Errorf("%s: %s", got.Status.Phase, got.Status.Message)
		}
	})
}

func TestStaticPodHasAMirror(t *testing.T) {
	onBench(t, func(b *bench) {
		manifest := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"st","namespace":"ns"},"spec":{"containers":[{"name":"c0","image":"im"}]}}`
		file := b.dir + "/st.json"
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		b.wait(gcInterval)
		p := b.get("st-n1")
		if p == nil || p.Status.Phase != v1.PodRunning || p.Annotations[staticpod.AnnotationMirror] == "" {
			t.Fatalf("mirror: %+v", p)
		}
		if err := b.client.CoreV1().Pods("ns").Delete(context.Background(), "st-n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.wait(2 * time.Second)
		if b.get("st-n1") == nil || b.count("start c0") != 1 {
			t.Errorf("after the mirror was deleted: %v", b.rt.Log())
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		b.wait(gcInterval)
		if b.get("st-n1") != nil || b.count("exit c0 143") != 1 || len(b.agent.Pods()) != 0 {
			t.Errorf("after the manifest went: %v", b.rt.Log())
		}
	})
}

func TestStaticPodRunsWithoutTheAPIAndEndsWithItsGracePeriod(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		var down atomic.Bool
		down.Store(true)
		b.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("no server answers")
		})
		manifest := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"st","namespace":"ns"},"spec":{"terminationGracePeriodSeconds":20,"containers":[{"name":"c0","image":"im"}]}}`
		file := b.dir + "/st.json"
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		b.rt.Script("c0", nodetest.Run{Stubborn: true})
		b.start()
		b.wait(gcInterval)
		if b.count("start c0") != 1 {
			t.Fatalf("without the API: %v", b.rt.Log())
		}
		down.Store(false)
		b.wait(2 * gcInterval)
		if p := b.get("st-n1"); p == nil || p.Status.Phase != v1.PodRunning {
			t.Errorf("mirror: %+v", p)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		b.wait(gcInterval + time.Minute)
		if b.get("st-n1") != nil || len(b.agent.Pods()) != 0 || b.count("stop c0 20") != 1 {
			t.Errorf("after the manifest went: %v", b.rt.Log())
		}
	})
}

// TestNoContainerStartsBeforeItsNetwork: an address without its rules sends nothing.
func TestNoContainerStartsBeforeItsNetwork(t *testing.T) {
	onBench(t, func(b *bench) {
		var refused atomic.Bool
		refused.Store(true)
		var asked atomic.Value
		b.agent.host.NetworkReady = func(_ context.Context, pod *v1.Pod, addresses []netip.Addr) error {
			asked.Store(fmt.Sprint(pod.Name, addresses))
			if refused.Load() {
				return errors.New("the rules are being written")
			}
			return nil
		}
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 1, 1))
		b.wait(3 * time.Second)
		w := b.get("p").Status.InitContainerStatuses[0].State.Waiting
		if b.count("start i0") != 0 || w == nil || w.Reason != "NetworkNotReady" || w.Message != "the rules are being written" {
			t.Errorf("%v: %+v", b.rt.Log(), w)
		}
		ips := b.get("p").Status.PodIPs
		if len(ips) == 0 || asked.Load() != fmt.Sprintf("p[%s]", ips[0].IP) {
			t.Errorf("asked for %v, the pod is at %v", asked.Load(), ips)
		}
		refused.Store(false)
		b.wait(time.Minute)
		if b.count("start i0") != 1 {
			t.Errorf("not started: %v", b.rt.Log())
		}
	})
}

func TestAPodThatTheNodeRefusesFailsAndNothingOfItRuns(t *testing.T) {
	onBench(t, func(b *bench) {
		p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "kernel.msgmax", Value: "65536"}}}
		b.run(p)
		b.wait(0)
		s := b.get("p").Status
		want := `Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted`
		if s.Phase != v1.PodFailed || s.Reason != "SysctlForbidden" || s.Message != want {
			t.Errorf("phase %s, reason %s, message %q", s.Phase, s.Reason, s.Message)
		}
		if log := b.rt.Log(); len(log) != 0 {
			t.Errorf("the runtime was asked for: %q", log)
		}
		events, err := b.client.CoreV1().Events("ns").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		told := slices.ContainsFunc(events.Items, func(e v1.Event) bool {
			return e.Reason == "SysctlForbidden" && e.Type == v1.EventTypeWarning && e.Message == strings.TrimPrefix(want, "Pod was rejected: ")
		})
		if !told {
			t.Errorf("no such event in %+v", events.Items)
		}
	})
}

func TestAPodIsNotStartedWithoutTheUserNamespaceItAsksFor(t *testing.T) {
	onBench(t, func(b *bench) {
		p, no := nodetest.Pod(v1.RestartPolicyAlways, 0, 1), false
		p.Spec.HostUsers = &no
		b.run(p)
		b.wait(time.Minute)
		if log := b.rt.Log(); len(log) != 0 || b.get("p").Status.Phase != v1.PodPending {
			t.Errorf("phase %s; the runtime was asked for: %q", b.get("p").Status.Phase, log)
		}
		events, err := b.client.CoreV1().Events("ns").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(events.Items, func(e v1.Event) bool {
			// Not the reason: events of the same nanosecond, as in fake time, have one name and so are one object.
			return strings.Contains(e.Message, "runtime does not support user namespaces")
		}) {
			t.Errorf("no such event in %+v", events.Items)
		}
	})
}

func TestEndsOfContainersAreCounted(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("i0", nodetest.Run{Lasts: time.Second})
		b.rt.Script("c0", nodetest.Run{Lasts: time.Second, Exit: 139})
		b.run(nodetest.Pod(v1.RestartPolicyNever, 1, 1))
		b.wait(time.Minute)
		families, err := b.agent.Counters().Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				var labels []string
				for _, l := range m.Label {
					labels = append(labels, l.GetValue())
				}
				got[strings.Join(append([]string{f.GetName()}, labels...), " ")] = m.GetCounter().GetValue()
			}
		}
		for _, want := range []string{
			"kubelet_terminated_containers_total container 139 Error", "kubelet_terminated_containers_total init_container 0 Completed",
			"kubelet_started_containers_total container", "kubelet_started_containers_total init_container", "kubelet_started_pods_total",
		} {
			if got[want] != 1 {
				t.Errorf("%s is %v, want 1, of %v", want, got[want], got)
			}
		}
	})
}

func TestAPodThatTakesMoreDiskThanItMayIsEvicted(t *testing.T) {
	onBench(t, func(b *bench) {
		limit := resource.MustParse("1Mi")
		p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
		p.Spec.Volumes = []v1.Volume{{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "e", MountPath: "/e"}}
		b.run(p)
		b.wait(time.Minute)
		if s := b.get("p").Status; s.Phase != v1.PodRunning {
			t.Fatalf("before it wrote anything: %+v", s)
		}
		file := b.dir + "/agent/pods/u/volumes/kubernetes.io~empty-dir/e/f"
		if err := os.WriteFile(file, make([]byte, 2<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		b.wait(30 * time.Second)
		s := b.get("p").Status
		if s.Phase != v1.PodFailed || s.Reason != "Evicted" || s.Message != `Usage of EmptyDir volume "e" exceeds the limit "1Mi". ` {
			t.Errorf("phase %s, reason %s, message %q", s.Phase, s.Reason, s.Message)
		}
		if b.count("stop c0 1") != 1 || b.count("start c0") != 1 {
			t.Errorf("the runtime was asked for: %q", b.rt.Log())
		}
	})
}
