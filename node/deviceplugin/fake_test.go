package deviceplugin

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const gpu = "example.com/gpu"

// fakePlugin is a device plug-in on a unix socket.
type fakePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	t        *testing.T
	dir      string
	resource string
	socket   string // its name in dir
	options  pluginapi.DevicePluginOptions
	lists    chan []*pluginapi.Device
	allocate func(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error)
	prefer   []string

	mu      sync.Mutex
	started [][]string // of PreStartContainer
	server  *grpc.Server
}

func newPlugin(b *bench, name string) *fakePlugin {
	return &fakePlugin{t: b.t, dir: b.dir, resource: name, socket: filepath.Base(name) + ".sock", lists: make(chan []*pluginapi.Device, 10)}
}

func (p *fakePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &p.options, nil
}

func (p *fakePlugin) ListAndWatch(_ *pluginapi.Empty, to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case <-to.Context().Done():
			return nil
		case list := <-p.lists:
			if err := to.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
	}
}

func (p *fakePlugin) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"DEVICES": "some"}}
	if p.allocate != nil {
		var err error
		if answer, err = p.allocate(ctx, r.ContainerRequests[0].DevicesIds); err != nil {
			return nil, err
		}
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{answer}}, nil
}

func (p *fakePlugin) GetPreferredAllocation(context.Context, *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: p.prefer}}}, nil
}

func (p *fakePlugin) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, r.DevicesIds)
	return &pluginapi.PreStartContainerResponse{}, nil
}

// start serves and registers; kill ends the plug-in at once.
func (p *fakePlugin) start(devices ...*pluginapi.Device) {
	p.t.Helper()
	p.serve(devices...)
	if err := register(p.dir, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: p.socket, ResourceName: p.resource}); err != nil {
		p.t.Fatal(err)
	}
}

// serve serves without registering, and returns the path of the socket.
func (p *fakePlugin) serve(devices ...*pluginapi.Device) string {
	p.t.Helper()
	path := filepath.Join(p.dir, p.socket)
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go p.server.Serve(l)
	p.t.Cleanup(p.kill)
	p.lists <- devices
	return path
}

func (p *fakePlugin) kill() { p.server.Stop() }

func register(dir string, r *pluginapi.RegisterRequest) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, r, grpc.WaitForReady(true))
	return err
}

// bench is a Manager that runs.
type bench struct {
	t      *testing.T
	dir    string
	m      *Manager
	notice chan struct{} // something has changed
	stop   func()

	mu        sync.Mutex
	unhealthy []types.UID
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir(), notice: make(chan struct{}, 1)}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bench) start() {
	b.t.Helper()
	changed := func() {
		select {
		case b.notice <- struct{}{}:
		default:
		}
	}
	m, err := New(Config{Dir: b.dir, NUMANodes: 3, Changed: changed, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
		HealthChanged: func(pods []types.UID) {
			b.mu.Lock()
			b.unhealthy = append(b.unhealthy, pods...)
			b.mu.Unlock()
			changed()
		}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.m = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	if err := register(b.dir, &pluginapi.RegisterRequest{}); status.Code(err) != codes.InvalidArgument { // it serves, and removes no sockets any more
		b.t.Fatal(err)
	}
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
}

// until waits until is reports true.
func (b *bench) until(what string, is func() bool) {
	b.t.Helper()
	deadline := time.After(20 * time.Second)
	for !is() {
		select {
		case <-b.notice:
		case <-deadline:
			b.t.Fatalf("not seen: %s", what)
		}
	}
}

func (b *bench) untilAllocatable(name string, want int64) {
	b.t.Helper()
	b.until("allocatable devices", func() bool {
		_, allocatable := b.m.Capacity(time.Now())
		q := allocatable[v1.ResourceName(name)]
		return q.Value() == want
	})
}

func (b *bench) allocate(pod *v1.Pod) error {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return b.allocateWithin(ctx, pod)
}

func (b *bench) allocateWithin(ctx context.Context, pod *v1.Pod) error {
	end, err := b.m.TakeTurn(ctx, pod)
	if err != nil {
		return err
	}
	defer end()
	for _, cs := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range cs {
			if err := b.m.Allocate(ctx, pod, &cs[i], 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// devicesOf lists the devices of a container.
func (b *bench) devicesOf(pod *v1.Pod, container, name string) []string {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	g := b.m.pods[pod.UID][container][name]
	if g == nil {
		return nil
	}
	return sortedKeys(g.devices)
}

func healthy(ids ...string) (out []*pluginapi.Device) {
	for _, id := range ids {
		out = append(out, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return out
}

// wanting returns a container that wants n devices of a resource.
func wanting(name, resourceName string, n int64) v1.Container {
	l := v1.ResourceList{v1.ResourceName(resourceName): *quantity.NewQuantity(n, quantity.DecimalSI)}
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: l, Requests: l}}
}

func podOf(uid string, containers ...v1.Container) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}, Spec: v1.PodSpec{Containers: containers}}
}

func disjoint(a, b []string) bool {
	return !slices.ContainsFunc(a, func(id string) bool { return slices.Contains(b, id) })
}
