package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/balsahq/balsa/node/csi"
	"github.com/balsahq/balsa/node/topology"
)

// How long a call to a plug-in may take. That of PreStartContainer is upstream's; upstream bounds no other call.
const (
	connectTimeout  = 10 * time.Second
	allocateTimeout = time.Minute
	preStartTimeout = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
	// listPause is the shortest time between two lists of devices that are read from a plug-in: each may change the Node.
	listPause = 100 * time.Millisecond
)

// plugin is a connection to one plug-in.
type plugin struct {
	resource string
	socket   string
	conn     *grpc.ClientConn
	api      pluginapi.DevicePluginClient
	options  *pluginapi.DevicePluginOptions
}

// dialPlugin connects to a plug-in and reads its options.
func dialPlugin(ctx context.Context, name, socket string) (*plugin, error) {
	conn, err := csi.Dial(socket)
	if err != nil {
		return nil, err
	}
	p := &plugin{resource: name, socket: socket, conn: conn, api: pluginapi.NewDevicePluginClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if p.options, err = p.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("GetDevicePluginOptions of %s: %w", name, err)
	}
	return p, nil
}

// allocate asks the plug-in what a container needs to use the devices.
func (p *plugin) allocate(ctx context.Context, devices []string) (*pluginapi.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	answer, err := p.api.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: devices}}})
	if err != nil {
		return nil, err
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response of %s", p.resource)
	}
	if n := proto.Size(answer.ContainerResponses[0]); n > maxAnswer {
		return nil, fmt.Errorf("the allocation response of %s has %d bytes, at most %d are kept", p.resource, n, maxAnswer)
	}
	return answer.ContainerResponses[0], nil
}

// prefer asks the plug-in which of the available devices it would rather give; nil when it has no preference.
func (p *plugin) prefer(ctx context.Context, available, include []string, size int) ([]string, error) {
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	answer, err := p.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: available, MustIncludeDeviceIDs: include, AllocationSize: int32(size)}}})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, nil
	}
	return answer.ContainerResponses[0].DeviceIDs, nil
}

// preStart tells the plug-in that a container with these devices is about to start.
func (p *plugin) preStart(ctx context.Context, devices []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	if _, err := p.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: devices}); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// follow takes over the plug-in's lists of devices until its connection ends.
func (m *Manager) follow(ctx context.Context, p *plugin) {
	defer m.disconnected(p)
	defer p.conn.Close()
	m.log.Info("device plug-in registered", "resource", p.resource)
	stream, err := p.api.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			err = m.update(p, list.Devices)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listPause):
		}
	}
	if ctx.Err() == nil && !errors.Is(err, errReplaced) {
		m.log.Warn("device plug-in gone; its devices are not given to pods until it registers again", "resource", p.resource, "err", err)
	}
}

var errReplaced = errors.New("another plug-in has registered for the resource")

// update takes over a list of devices.
func (m *Manager) update(p *plugin, list []*pluginapi.Device) error {
	devices, err := readDevices(list)
	if err != nil {
		return err
	}
	m.mu.Lock()
	r := m.resources[p.resource]
	if r == nil || r.plugin != p {
		m.mu.Unlock()
		return errReplaced
	}
	old := r.devices
	r.devices = devices
	changed := m.podsWith(p.resource, func(id string) bool {
		before, known := old[id]
		return !known || before.healthy != devices[id].healthy
	})
	m.mu.Unlock()
	m.cfg.Changed()
	if len(changed) > 0 {
		m.cfg.HealthChanged(changed)
	}
	return nil
}

func readDevices(list []*pluginapi.Device) (map[string]device, error) {
	if len(list) > maxDevices {
		return nil, fmt.Errorf("%d devices, at most %d are kept", len(list), maxDevices)
	}
	out := make(map[string]device, len(list))
	for _, d := range list {
		if d.GetID() == "" || len(d.GetID()) > maxID {
			return nil, fmt.Errorf("device ID %.300q: give 1 to %d bytes", d.GetID(), maxID)
		}
		var nodes topology.Nodes
		for _, n := range d.GetTopology().GetNodes() {
			nodes |= topology.NodesOf(int(n.GetID()))
		}
		out[d.ID] = device{healthy: d.Health == pluginapi.Healthy, nodes: nodes}
	}
	return out, nil
}

// disconnected notes that a plug-in has gone, unless another one has taken its place.
func (m *Manager) disconnected(p *plugin) {
	m.mu.Lock()
	r := m.resources[p.resource]
	current := r != nil && r.plugin == p
	if current {
		r.plugin, r.left = nil, time.Now()
	}
	m.mu.Unlock()
	if current {
		m.cfg.Changed()
	}
}

// podsWith lists the pods that have a device of the resource for which is reports true; the lock is held.
func (m *Manager) podsWith(resource string, is func(id string) bool) []types.UID {
	found := map[types.UID]bool{}
	for uid, containers := range m.pods {
		for _, resources := range containers {
			if g := resources[resource]; g != nil {
				for id := range g.devices {
					found[uid] = found[uid] || is(id)
				}
			}
		}
	}
	maps.DeleteFunc(found, func(_ types.UID, changed bool) bool { return !changed })
	return slices.Sorted(maps.Keys(found))
}
