package deviceplugin

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/pluginwatcher"
)

func TestAContainerGetsItsDevicesAndWhatBelongsToThem(t *testing.T) {
	b := newBench(t)
	p := newPlugin(b, gpu)
	p.options.PreStartRequired = true
	p.allocate = func(_ context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		return &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"GPUS": strings.Join(ids, ",")},
			Mounts:      []*pluginapi.Mount{{HostPath: "/lib/gpu", ContainerPath: "/gpu", ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu", Permissions: "rw"}},
			Annotations: map[string]string{"gpu": "yes"},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/gpu=0"}},
		}, nil
	}
	p.start(healthy("a", "b", "c")...)
	b.untilAllocatable(gpu, 3)
	pod := podOf("u1", wanting("c0", gpu, 2), wanting("none", "example.com/other", 1))
	if !b.m.Wants(pod) || b.m.Wants(podOf("u2", wanting("c0", "example.com/other", 1))) {
		t.Error("Wants does not follow the registered resources")
	}
	if err := b.allocate(pod); err != nil {
		t.Fatal(err)
	}
	var got criconfig.Allocation
	for i := range pod.Spec.Containers {
		if err := b.m.ForContainer(t.Context(), pod, &pod.Spec.Containers[i], &got); err != nil {
			t.Fatal(err)
		}
	}
	if len(got.Env) != 1 || string(got.Env[0].Value) != "a,b" || len(got.Mounts) != 1 || !got.Mounts[0].Readonly || len(got.Devices) != 1 ||
		got.Devices[0].Permissions != "rw" || got.Annotations["gpu"] != "yes" || len(got.CDIDevices) != 1 {
		t.Errorf("allocation: %+v", got)
	}
	if len(p.started) != 1 || !slices.Equal(p.started[0], []string{"a", "b"}) {
		t.Errorf("PreStartContainer: %v", p.started)
	}
	if err := b.allocate(podOf("u3", wanting("c0", gpu, 2))); err == nil || err.Error() != "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1" {
		t.Errorf("too many devices: %v", err)
	}
	b.m.Release("u1")
	if err := b.allocate(podOf("u3", wanting("c0", gpu, 3))); err != nil {
		t.Error(err)
	}
}

func TestAllocationsOutliveTheAgentAndThePlugin(t *testing.T) {
	b := newBench(t)
	p := newPlugin(b, gpu)
	p.start(healthy("a", "b")...)
	b.untilAllocatable(gpu, 2)
	first, second := podOf("u1", wanting("c0", gpu, 1)), podOf("u2", wanting("c0", gpu, 1))
	if err := b.allocate(first); err != nil {
		t.Fatal(err)
	}
	had := b.devicesOf(first, "c0", gpu)
	b.stop()
	p.kill()
	b.start()
	b.untilAllocatable(gpu, 0)
	if err := b.allocate(first); err != nil {
		t.Errorf("the pod's own devices are lost: %v", err)
	}
	var a criconfig.Allocation
	if err := b.m.ForContainer(t.Context(), first, &first.Spec.Containers[0], &a); err != nil || len(a.Env) != 1 {
		t.Errorf("the container cannot start again without the plug-in: %+v %v", a, err)
	}
	if err := b.allocate(second); err == nil || err.Error() != "cannot allocate unregistered device example.com/gpu" {
		t.Errorf("a new pod without a plug-in: %v", err)
	}
	if h := b.m.Health("u1", "c0"); len(h) != 1 || h[0].Resources[0].Health != v1.ResourceHealthStatusUnknown {
		t.Errorf("health before the plug-in is back: %+v", h)
	}
	p.start(healthy("a", "b")...)
	b.untilAllocatable(gpu, 2)
	if err := b.allocate(second); err != nil {
		t.Fatal(err)
	}
	if got := b.devicesOf(second, "c0", gpu); !disjoint(had, got) {
		t.Errorf("%v is given to two pods: %v", had, got)
	}
}

func TestAPluginThatIsKilledInAllocateLeavesItsDevicesFree(t *testing.T) {
	b := newBench(t)
	p := newPlugin(b, gpu)
	asked := make(chan struct{})
	p.allocate = func(ctx context.Context, _ []string) (*pluginapi.ContainerAllocateResponse, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.start(healthy("a")...)
	b.untilAllocatable(gpu, 1)
	pod := podOf("u1", wanting("c0", gpu, 1))
	failed := make(chan error, 1)
	go func() { failed <- b.allocate(pod) }()
	<-asked
	p.kill()
	if err := <-failed; err == nil {
		t.Error("the allocation succeeded without the plug-in")
	}
	if got := b.devicesOf(pod, "c0", gpu); got != nil {
		t.Errorf("the pod has %v", got)
	}
	b.untilAllocatable(gpu, 0)
	p.allocate = nil
	p.start(healthy("a")...)
	b.untilAllocatable(gpu, 1)
	if err := b.allocate(podOf("u2", wanting("c0", gpu, 1))); err != nil {
		t.Errorf("after the plug-in's restart: %v", err)
	}
}

func TestAPluginThatHangsHoldsBackOnlyItsOwnPods(t *testing.T) {
	b := newBench(t)
	hangs, works := newPlugin(b, gpu), newPlugin(b, "example.com/nic")
	asked := make(chan struct{})
	hangs.allocate = func(ctx context.Context, _ []string) (*pluginapi.ContainerAllocateResponse, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	hangs.start(healthy("a", "b")...)
	works.start(healthy("a")...)
	b.untilAllocatable(gpu, 2)
	b.untilAllocatable("example.com/nic", 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- b.allocateWithin(ctx, podOf("u1", wanting("c0", gpu, 1))) }()
	<-asked
	go func() {
		ended <- b.allocateWithin(ctx, podOf("u2", wanting("c0", gpu, 1), wanting("c1", "example.com/nic", 1)))
	}()
	if err := b.allocate(podOf("u3", wanting("c0", "example.com/nic", 1))); err != nil {
		t.Errorf("a pod that does not want %s: %v", gpu, err)
	}
	cancel() // the pods are deleted
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a pod of the hanging plug-in was admitted")
		}
	}
}

func TestHealthOfDevices(t *testing.T) {
	b := newBench(t)
	p := newPlugin(b, gpu)
	p.start(healthy("a", "b")...)
	b.untilAllocatable(gpu, 2)
	pod := podOf("u1", wanting("c0", gpu, 1))
	if err := b.allocate(pod); err != nil {
		t.Fatal(err)
	}
	p.lists <- append(healthy("b"), &pluginapi.Device{ID: "a", Health: pluginapi.Unhealthy})
	b.untilAllocatable(gpu, 1)
	b.until("the pod of the sick device", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.unhealthy) == 1 && b.unhealthy[0] == "u1"
	})
	if h := b.m.Health("u1", "c0"); len(h) != 1 || h[0].Name != gpu || len(h[0].Resources) != 1 || h[0].Resources[0] != (v1.ResourceHealth{ResourceID: "a", Health: v1.ResourceHealthStatusUnhealthy}) {
		t.Errorf("health: %+v", h)
	}
	capacity, _ := b.m.Capacity(time.Now())
	if q := capacity[gpu]; q.Value() != 2 {
		t.Errorf("capacity %s, want 2: an unhealthy device is present", q.String())
	}
	if err := b.allocate(pod); err == nil || !strings.HasPrefix(err.Error(), errUnhealthy.Error()) {
		t.Errorf("admitted again with a sick device: %v", err)
	}
}

func TestAResourceWhosePluginWentLosesItsCapacityAfterAWhile(t *testing.T) {
	b := newBench(t)
	p := newPlugin(b, gpu)
	p.start(healthy("a")...)
	b.untilAllocatable(gpu, 1)
	p.kill()
	b.untilAllocatable(gpu, 0)
	before, _ := b.m.Capacity(time.Now().Add(gracePeriod - time.Minute))
	if q := before[gpu]; q.Value() != 1 {
		t.Errorf("capacity %s in the grace period, want 1", q.String())
	}
	capacity, _ := b.m.Capacity(time.Now().Add(gracePeriod + time.Minute))
	if q, there := capacity[gpu]; !there || q.Value() != 0 {
		t.Errorf("capacity %s %t after the grace period, want 0", q.String(), there)
	}
}

func TestInitContainersLeaveTheirDevices(t *testing.T) {
	b := newBench(t)
	newPlugin(b, gpu).start(healthy("a", "b", "c")...)
	b.untilAllocatable(gpu, 3)
	always := v1.ContainerRestartPolicyAlways
	pod := podOf("u1", wanting("c0", gpu, 1), wanting("c1", gpu, 1))
	side := wanting("side", gpu, 1)
	side.RestartPolicy = &always
	pod.Spec.InitContainers = []v1.Container{wanting("i0", gpu, 3), side, wanting("i1", gpu, 2)}
	if err := b.allocate(pod); err != nil {
		t.Fatal(err)
	}
	of := func(c string) []string { return b.devicesOf(pod, c, gpu) }
	if all := slices.Concat(of("side"), of("c0"), of("c1")); len(slices.Compact(slices.Sorted(slices.Values(all)))) != 3 {
		t.Errorf("containers that run together share a device: %v", all)
	}
	if !disjoint(of("side"), of("i1")) {
		t.Errorf("the sidecar's %v is given to an init container that starts later: %v", of("side"), of("i1"))
	}
}

func TestThePluginsPreferenceCounts(t *testing.T) {
	b := newBench(t)
	p := newPlugin(b, gpu)
	p.options.GetPreferredAllocationAvailable, p.prefer = true, []string{"c", "unknown", "b"}
	p.start(healthy("a", "b", "c", "d")...)
	b.untilAllocatable(gpu, 4)
	pod := podOf("u1", wanting("c0", gpu, 2))
	if err := b.allocate(pod); err != nil {
		t.Fatal(err)
	}
	if got := b.devicesOf(pod, "c0", gpu); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("got %v", got)
	}
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		request *pluginapi.RegisterRequest
		says    string
	}{
		"version":         {&pluginapi.RegisterRequest{Version: "v1", ResourceName: gpu, Endpoint: "x.sock"}, "version"},
		"native resource": {&pluginapi.RegisterRequest{Version: pluginapi.Version, ResourceName: "cpu", Endpoint: "x.sock"}, "extended resource"},
		"kubernetes.io":   {&pluginapi.RegisterRequest{Version: pluginapi.Version, ResourceName: "kubernetes.io/x", Endpoint: "x.sock"}, "extended resource"},
		"other directory": {&pluginapi.RegisterRequest{Version: pluginapi.Version, ResourceName: gpu, Endpoint: "../x.sock"}, "endpoint"},
		"absolute":        {&pluginapi.RegisterRequest{Version: pluginapi.Version, ResourceName: gpu, Endpoint: "/x.sock"}, "endpoint"},
		"the agent's":     {&pluginapi.RegisterRequest{Version: pluginapi.Version, ResourceName: gpu, Endpoint: "kubelet.sock"}, "endpoint"},
		"no name":         {&pluginapi.RegisterRequest{Version: pluginapi.Version, ResourceName: gpu}, "endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := register(b.dir, c.request); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error about %q", err, c.says)
			}
		})
	}
	if capacity, _ := b.m.Capacity(time.Now()); len(capacity) != 0 {
		t.Errorf("capacity: %v", capacity)
	}
}

func TestAFileThatCannotBeReadIsNotTakenForNoAllocations(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t}
	if _, err := New(Config{Dir: dir, Changed: func() {}, HealthChanged: nil, Logger: nil}); err == nil {
		t.Error("a configuration without a logger is taken")
	}
	cfg := newBench(t).m.cfg
	cfg.Dir = dir
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), fileName) {
		b.t.Errorf("got %v", err)
	}
}

func TestListsOfDevicesAreBounded(t *testing.T) {
	for name, list := range map[string][]*pluginapi.Device{
		"too many": make([]*pluginapi.Device, maxDevices+1),
		"no ID":    healthy(""),
		"long ID":  healthy(strings.Repeat("x", maxID+1)),
	} {
		if _, err := readDevices(list); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPluginsOfTheRegistry(t *testing.T) {
	b := newBench(t)
	socket := newPlugin(b, gpu).serve(healthy("a")...)
	for name, info := range map[string]*registerapi.PluginInfo{
		"version": {Name: gpu, SupportedVersions: []string{"v1"}}, "resource": {Name: "gpu", SupportedVersions: []string{pluginapi.Version}},
	} {
		if err := b.m.Register(t.Context(), info, socket); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	info := &registerapi.PluginInfo{Name: gpu, SupportedVersions: []string{pluginapi.Version}}
	if err := b.m.Register(t.Context(), info, socket); err != nil {
		t.Fatal(err)
	}
	b.untilAllocatable(gpu, 1)
	b.m.Gone(t.Context(), info, "/another", pluginwatcher.None)
	b.m.Gone(t.Context(), info, socket, pluginwatcher.SamePath)
	if _, allocatable := b.m.Capacity(time.Now()); func() int64 { q := allocatable[gpu]; return q.Value() }() != 1 {
		t.Error("a plug-in that is there was given up")
	}
	b.m.Gone(t.Context(), info, socket, pluginwatcher.None)
	b.untilAllocatable(gpu, 0)
}
