package csi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/node/pluginwatcher"
)

const (
	testDriver = "fake.csi.test"
	testNode   = "n1"
	// registryDir is where drivers put a socket that says how to reach them.
	registryDir = "plugins_registry"
)

// fakeDriver is a foreign driver that mounts: a tmpfs where a volume is staged, and that, bound, where it is published.
type fakeDriver struct {
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	t   *testing.T
	can []nodeCapability
	max int64

	mu        sync.Mutex
	calls     []string
	fail      map[string]error // by call, once: "stage" fails before it does anything, "stage after" when it has done it
	published *csipb.NodePublishVolumeRequest
	secrets   map[string]string // of the last stage and the last expansion
	told      []*registerapi.RegistrationStatus
	sock      string
}

func (f *fakeDriver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: testDriver, Endpoint: f.sock, SupportedVersions: []string{"1.0.0"}}, nil
}

func (f *fakeDriver) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, s)
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (f *fakeDriver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: "id-of-" + testNode, MaxVolumesPerNode: f.max,
		AccessibleTopology: &csipb.Topology{Segments: map[string]string{"topology.fake/zone": "z1"}}}, nil
}

func (f *fakeDriver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, c := range f.can {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

func (f *fakeDriver) called(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !strings.HasSuffix(call, " after") {
		f.calls = append(f.calls, call)
	}
	err := f.fail[call]
	delete(f.fail, call)
	return err
}

func (f *fakeDriver) setSecrets(s map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.secrets = s
}

func (f *fakeDriver) count(call string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (f *fakeDriver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	if err := f.called("stage"); err != nil {
		return nil, err
	}
	f.setSecrets(r.Secrets)
	if there, err := mounted(r.StagingTargetPath); err != nil {
		return nil, err
	} else if !there {
		if err := unix.Mount("fake", r.StagingTargetPath, "tmpfs", 0, "size=1m"); err != nil {
			return nil, err
		}
	}
	return &csipb.NodeStageVolumeResponse{}, f.called("stage after")
}

func (f *fakeDriver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	if err := f.called("publish"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.published = r
	f.mu.Unlock()
	if there, err := mounted(r.TargetPath); err != nil {
		return nil, err
	} else if !there {
		if err := os.MkdirAll(r.TargetPath, 0o700); err != nil {
			return nil, err
		}
		from, flags, fs := r.StagingTargetPath, uintptr(unix.MS_BIND), ""
		if from == "" {
			from, flags, fs = "inline", 0, "tmpfs"
		}
		if err := unix.Mount(from, r.TargetPath, fs, flags, ""); err != nil {
			return nil, err
		}
	}
	return &csipb.NodePublishVolumeResponse{}, f.called("publish after")
}

func (f *fakeDriver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := f.called("unpublish"); err != nil {
		return nil, err
	}
	if there, _ := mounted(r.TargetPath); there {
		if err := unix.Unmount(r.TargetPath, 0); err != nil {
			return nil, err
		}
	}
	_ = os.Remove(r.TargetPath)
	return &csipb.NodeUnpublishVolumeResponse{}, f.called("unpublish after")
}

func (f *fakeDriver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	if err := f.called("unstage"); err != nil {
		return nil, err
	}
	if there, _ := mounted(r.StagingTargetPath); there {
		if err := unix.Unmount(r.StagingTargetPath, 0); err != nil {
			return nil, err
		}
	}
	return &csipb.NodeUnstageVolumeResponse{}, f.called("unstage after")
}

func (f *fakeDriver) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	if err := f.called("expand"); err != nil {
		return nil, err
	}
	f.setSecrets(r.Secrets)
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.RequiredBytes}, nil
}

func (f *fakeDriver) NodeGetVolumeStats(context.Context, *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 100, Used: 40, Available: 60}}}, nil
}

// machine is a node with a fake driver and a fake API.
type machine struct {
	t      *testing.T
	root   string
	client *fake.Clientset
	driver *fakeDriver
	node   *Node
	inUse  func(v1.UniqueVolumeName) bool
	stop   func()
}

func newMachine(t *testing.T, objects ...runtime.Object) *machine {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "csi") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	objects = append(objects, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "node-uid"}})
	m := &machine{t: t, root: root, client: fake.NewClientset(objects...), driver: &fakeDriver{t: t, fail: map[string]error{}, sock: filepath.Join(root, "d.sock"),
		can: []nodeCapability{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS}}}
	t.Cleanup(func() {
		for _, path := range m.mounts() {
			t.Errorf("%s is still mounted", path)
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
		_ = os.RemoveAll(root)
	})
	return m
}

// serve serves the driver and its registration until the test ends.
func (m *machine) serve() {
	m.t.Helper()
	dir := filepath.Join(m.root, registryDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	for _, path := range []string{m.driver.sock, filepath.Join(dir, "fake-reg.sock")} {
		l, err := net.Listen("unix", path)
		if err != nil {
			m.t.Fatal(err)
		}
		s := grpc.NewServer()
		csipb.RegisterNodeServer(s, m.driver)
		registerapi.RegisterRegistrationServer(s, m.driver)
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		m.t.Cleanup(func() { s.Stop(); <-done })
	}
}

// start begins a life of the agent; it returns when the driver is registered.
func (m *machine) start() {
	m.t.Helper()
	var err error
	if m.node, err = New(Config{RootDir: m.root, NodeName: testNode, Client: m.client, InUse: m.inUse}); err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	n := m.node
	w := pluginwatcher.Watcher{
		Dir: filepath.Join(m.root, registryDir), Handlers: map[string]pluginwatcher.Handler{registerapi.CSIPlugin: n},
		Ready: n.AwaitNode, Dial: Dial, Logger: slog.New(slog.DiscardHandler),
	}
	go func() { done <- n.Run(ctx) }()
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
	m.await("the driver is registered", func() bool { _, err := m.node.driver(testDriver); return err == nil })
}

// restart ends the agent's life and begins the next.
func (m *machine) restart() {
	m.t.Helper()
	m.stop()
	m.start()
}

func (m *machine) await(what string, is func() bool) {
	m.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			m.t.Fatalf("not in time: %s", what)
		}
		pause(m.t.Context(), 5*time.Millisecond)
	}
}

func (m *machine) mounts() (out []string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], m.root+"/") {
			out = append(out, f[4])
		}
	}
	slices.Reverse(out)
	return out
}

func testPod(uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid)}, Spec: v1.PodSpec{ServiceAccountName: "sa"}}
}

func testPV() *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, MountOptions: []string{"noatime"},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: testDriver, VolumeHandle: "handle/1", FSType: "ext4", VolumeAttributes: map[string]string{"a": "b"}}}}}
}

func request(uid string) Request {
	return Request{Pod: testPod(uid), Volume: &v1.Volume{Name: "data"}, PV: testPV()}
}

// withoutAttaching is a CSIDriver whose volumes are not attached.
func withoutAttaching(change ...func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	no := false
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: testDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}}
	for _, c := range change {
		c(&d.Spec)
	}
	return d
}

var errFake = errors.New("planted")
