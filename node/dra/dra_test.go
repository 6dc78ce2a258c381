package dra

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/csi"
	"github.com/balsahq/balsa/node/pluginwatcher"
)

const testDriver = "gpu.example.com"

// fakeDriver is a driver as its authors write it: over upstream's helper library, on real sockets.
type fakeDriver struct {
	mu       sync.Mutex
	fail     error
	prepared map[types.UID]int // calls by claim
	taken    map[types.UID]int
}

func (f *fakeDriver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		f.prepared[c.UID]++
		r := kubeletplugin.PrepareResult{Err: f.fail}
		for _, d := range c.Status.Allocation.Devices.Results {
			r.Devices = append(r.Devices, kubeletplugin.Device{Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device, CDIDeviceIDs: []string{"example.com/gpu=" + d.Device}})
		}
		out[c.UID] = r
	}
	f.fail = nil
	return out, nil
}

func (f *fakeDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[types.UID]error{}
	for _, c := range claims {
		f.taken[c.UID]++
		out[c.UID] = f.fail
	}
	f.fail = nil
	return out, nil
}

func (f *fakeDriver) HandleError(context.Context, error, string) {}

func (f *fakeDriver) failOnce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = errors.New("the driver is on fire")
}

func (f *fakeDriver) calls(claim types.UID) (prepared, taken int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.prepared[claim], f.taken[claim]
}

// machine is a node with a driver, and the lives of its agent.
type machine struct {
	*Manager
	t      *testing.T
	root   string
	client *fake.Clientset
	driver *fakeDriver
	stop   func()
}

func newMachine(t *testing.T, claims ...*resourceapi.ResourceClaim) *machine {
	root, err := os.MkdirTemp("", "dra") // the path of a socket is short, and t.TempDir has the test's name in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	m := &machine{t: t, root: root, client: fake.NewClientset(), driver: &fakeDriver{prepared: map[types.UID]int{}, taken: map[types.UID]int{}}}
	for _, c := range claims {
		if err := m.client.Tracker().Add(c); err != nil {
			t.Fatal(err)
		}
	}
	m.start()
	return m
}

// start begins a life of the agent.
func (m *machine) start() {
	m.t.Helper()
	var err error
	if m.Manager, err = New(Config{RootDir: m.root, NodeName: "n1", Client: m.client, HealthChanged: func([]types.UID) {}, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	manager, done := m.Manager, make(chan error, 2)
	w := pluginwatcher.Watcher{
		Dir: filepath.Join(m.root, "plugins_registry"), Handlers: map[string]pluginwatcher.Handler{registerapi.DRAPlugin: manager},
		Ready: func(context.Context) bool { return true }, Dial: csi.Dial, Logger: slog.New(slog.DiscardHandler),
	}
	go func() { done <- manager.Run(ctx) }()
	m.await("the agent runs", func() bool { manager.mu.Lock(); defer manager.mu.Unlock(); return manager.running != nil })
	go func() { done <- w.Run(ctx) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				m.t.Error(err)
			}
		}
	})
	m.t.Cleanup(m.stop)
}

func (m *machine) restart() {
	m.stop()
	m.start()
}

// serve runs the driver until what it returns is called.
func (m *machine) serve(options ...kubeletplugin.Option) (end func()) {
	m.t.Helper()
	data, registry := filepath.Join(m.root, "plugins", testDriver), filepath.Join(m.root, "plugins_registry")
	for _, dir := range []string{data, registry} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			m.t.Fatal(err)
		}
	}
	helper, err := kubeletplugin.Start(context.Background(), m.driver, append([]kubeletplugin.Option{
		kubeletplugin.DriverName(testDriver), kubeletplugin.NodeName("n1"), kubeletplugin.KubeClient(m.client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(registry),
	}, options...)...)
	if err != nil {
		m.t.Fatal(err)
	}
	end = sync.OnceFunc(helper.Stop)
	m.t.Cleanup(end)
	m.awaitDriver()
	return end
}

func (m *machine) awaitDriver() {
	m.t.Helper()
	m.await("the driver is registered", func() bool { _, err := m.Manager.driver(testDriver); return err == nil })
}

func (m *machine) await(what string, is func() bool) {
	m.t.Helper()
	deadline := time.After(time.Minute)
	for !is() {
		select {
		case <-deadline:
			m.t.Fatalf("waited in vain: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// newTestClaim is allocated and reserved for the pods.
func newTestClaim(name string, pods ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "a", Driver: testDriver, Pool: "n1", Device: name + "-0"}, {Request: "b", Driver: testDriver, Pool: "n1", Device: name + "-1"},
	}}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
	}
	return c
}

// podUsing has one container that uses request "b" of the claim, and one that uses nothing.
func podUsing(name, claim string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{
		ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
		Containers: []v1.Container{
			{Name: "one", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu", Request: "b"}}}},
			{Name: "none"},
			{Name: "all", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}}},
		},
	}}
}

func (m *machine) cdi(pod *v1.Pod, container int) (ids []string) {
	m.t.Helper()
	var a criconfig.Allocation
	if err := m.ForContainer(pod, &pod.Spec.Containers[container], &a); err != nil {
		m.t.Fatal(err)
	}
	for _, d := range a.CDIDevices {
		ids = append(ids, d.Name)
	}
	return ids
}

func TestAClaimIsPreparedOnceAndTakenBackAfterItsLastPod(t *testing.T) {
	for name, versions := range map[string][]kubeletplugin.Option{
		"v1":      {kubeletplugin.NodeV1beta1(false)},
		"v1beta1": {kubeletplugin.NodeV1(false)},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, newTestClaim("c", "p", "q"))
			m.serve(versions...)
			p, q := podUsing("p", "c"), podUsing("q", "c")
			for _, pod := range []*v1.Pod{p, q, p} {
				if err := m.Prepare(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
			if got := m.cdi(p, 0); !slices.Equal(got, []string{"example.com/gpu=c-1"}) {
				t.Error(got)
			}
			if got := m.cdi(q, 1); got != nil {
				t.Error(got)
			}
			if got := m.cdi(q, 2); !slices.Equal(got, []string{"example.com/gpu=c-0", "example.com/gpu=c-1"}) {
				t.Error(got)
			}
			m.restart() // the record says what is prepared
			m.awaitDriver()
			if got := m.cdi(p, 0); !slices.Equal(got, []string{"example.com/gpu=c-1"}) {
				t.Error("after a restart:", got)
			}
			if err := m.Unprepare(t.Context(), "p"); err != nil {
				t.Fatal(err)
			}
			if n, taken := m.driver.calls("uid-c"); n != 1 || taken != 0 {
				t.Errorf("prepared %d times, taken back %d times while q runs", n, taken)
			}
			m.driver.failOnce()
			if err := m.Unprepare(t.Context(), "q"); err == nil || !strings.Contains(err.Error(), "the driver is on fire") {
				t.Error(err)
			}
			if err := m.UnprepareFormer(t.Context(), func(types.UID) bool { return false }); err != nil {
				t.Fatal(err)
			}
			if len(m.claims) != 0 {
				t.Errorf("%+v", m.claims)
			}
		})
	}
}

func TestWhatCannotBePreparedIsAnErrorThatTheNextCallOvercomes(t *testing.T) {
	notAllocated := newTestClaim("empty", "p")
	notAllocated.Status.Allocation = nil
	m := newMachine(t, newTestClaim("c", "p"), newTestClaim("foreign", "q"), notAllocated)
	fails := func(claim, with string) {
		t.Helper()
		if err := m.Prepare(t.Context(), podUsing("p", claim)); err == nil || !strings.Contains(err.Error(), with) {
			t.Errorf("%v, want %q", err, with)
		}
	}
	fails("c", "DRA driver gpu.example.com is not registered")
	fails("foreign", "is not allowed to use ResourceClaim")
	fails("empty", "not allocated")
	fails("absent", "fetch ResourceClaim absent")
	end := m.serve()
	m.driver.failOnce()
	fails("c", "NodePrepareResources failed for ResourceClaim c: ")
	var a criconfig.Allocation
	if err := m.ForContainer(podUsing("p", "c"), &podUsing("p", "c").Spec.Containers[0], &a); err == nil {
		t.Error("a container starts without its devices")
	}
	end()
	m.await("the driver is gone", func() bool { _, err := m.Manager.driver(testDriver); return err != nil })
	m.mu.Lock()
	if _, noted := m.wipes[testDriver]; !noted {
		t.Error("the slices of the driver stay")
	}
	m.mu.Unlock()
	m.serve()
	if err := m.Prepare(t.Context(), podUsing("p", "c")); err != nil {
		t.Error(err)
	}
	m.await("the slices stay", func() bool { m.mu.Lock(); defer m.mu.Unlock(); return len(m.wipes) == 0 })
}

func TestAClaimOfTheSameNameWaitsForTheOneBefore(t *testing.T) {
	m := newMachine(t, newTestClaim("c", "p"))
	m.serve()
	if err := m.Prepare(t.Context(), podUsing("p", "c")); err != nil {
		t.Fatal(err)
	}
	next := newTestClaim("c", "q")
	next.UID = "next"
	if err := m.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), next, "ns"); err != nil {
		t.Fatal(err)
	}
	const want = "prepare dynamic resources: old ResourceClaim with same name c and different UID uid-c still exists (previous pod force-deleted?!)"
	if err := m.Prepare(t.Context(), podUsing("q", "c")); err == nil || err.Error() != want {
		t.Error(err)
	}
}

func TestTheSlicesOfTheNodeAreDeletedAtTheStart(t *testing.T) {
	m := newMachine(t)
	m.await("the slices are deleted", func() bool {
		return slices.ContainsFunc(m.client.Actions(), func(a clienttesting.Action) bool {
			d, ok := a.(clienttesting.DeleteCollectionAction)
			return ok && d.GetListRestrictions().Fields.String() == "spec.nodeName=n1"
		})
	})
}

// healthServer says the health of one device.
type healthServer struct {
	healthpb.UnimplementedDRAResourceHealthServer
	say chan healthpb.HealthStatus
}

func (h *healthServer) NodeWatchResources(_ *healthpb.NodeWatchResourcesRequest, s grpc.ServerStreamingServer[healthpb.NodeWatchResourcesResponse]) error {
	for {
		select {
		case status := <-h.say:
			err := s.Send(&healthpb.NodeWatchResourcesResponse{Devices: []*healthpb.DeviceHealth{{
				Device: &healthpb.DeviceIdentifier{PoolName: "n1", DeviceName: "c-1"}, Health: status, LastUpdatedTime: time.Now().Unix(),
			}}})
			if err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func TestHealthOfDevicesReachesTheContainersThatUseThem(t *testing.T) {
	m := newMachine(t, newTestClaim("c", "p"))
	m.serve()
	pod := podUsing("p", "c")
	if err := m.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(m.root, "health.sock")
	l, err := csi.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	h, server := &healthServer{say: make(chan healthpb.HealthStatus)}, grpc.NewServer()
	healthpb.RegisterDRAResourceHealthServer(server, h)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	err = m.Register(t.Context(), &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: testDriver, SupportedVersions: services}, path)
	if err != nil {
		t.Fatal(err)
	}
	is := func(want v1.ResourceHealthStatus) bool {
		got := m.Health(pod, "one")
		return len(got) == 1 && got[0].Name == "claim:gpu/b" && len(got[0].Resources) == 1 &&
			got[0].Resources[0] == v1.ResourceHealth{ResourceID: "example.com/gpu=c-1", Health: want}
	}
	if !is(v1.ResourceHealthStatusUnknown) || m.Health(pod, "none") != nil {
		t.Errorf("%+v", m.Health(pod, "one"))
	}
	for status, want := range map[healthpb.HealthStatus]v1.ResourceHealthStatus{
		healthpb.HealthStatus_HEALTHY: v1.ResourceHealthStatusHealthy, healthpb.HealthStatus_UNHEALTHY: v1.ResourceHealthStatusUnhealthy,
	} {
		h.say <- status
		m.await("the health is "+string(want), func() bool { return is(want) })
	}
}
