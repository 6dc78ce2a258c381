package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/topology"
)

// grant is what a container has of one resource: the devices with their NUMA nodes, and what it needs to use them.
type grant struct {
	devices map[string]topology.Nodes
	answer  *pluginapi.ContainerAllocateResponse
}

// podGrants holds the grants of a pod by container and resource.
type podGrants map[string]map[string]*grant

func (m *Manager) insert(uid types.UID, container, resource string, g *grant) {
	if m.pods[uid] == nil {
		m.pods[uid] = podGrants{}
	}
	if m.pods[uid][container] == nil {
		m.pods[uid][container] = map[string]*grant{}
	}
	m.pods[uid][container][resource] = g
}

// ForContainer adds to a container's configuration what it needs to use its devices. It is called before each start: a plug-in
// that asked for it is told first. A container without the devices that it wants, which is one that an agent without this
// package has started before, gets them now.
func (m *Manager) ForContainer(ctx context.Context, pod *v1.Pod, c *v1.Container, to *criconfig.Allocation) error {
	for _, req := range m.requests(pod, c) {
		g, err := m.grantFor(ctx, req)
		if err != nil {
			return err
		}
		if err := m.announceStart(ctx, req.resource, g); err != nil {
			return err
		}
		addAnswer(to, g.answer)
	}
	return nil
}

func (m *Manager) grantFor(ctx context.Context, req request) (*grant, error) {
	if g := m.grantOf(req); g != nil {
		return g, nil
	}
	end, err := m.TakeTurn(ctx, req.pod)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := m.allocate(ctx, req, 0); err != nil {
		return nil, err
	}
	if g := m.grantOf(req); g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s", req.pod.UID, req.container.Name, req.resource)
}

func (m *Manager) grantOf(req request) *grant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[req.pod.UID][req.container.Name][req.resource]
}

// announceStart calls PreStartContainer where the plug-in asks for it.
func (m *Manager) announceStart(ctx context.Context, name string, g *grant) error {
	m.mu.Lock()
	r := m.resources[name]
	var p *plugin
	needed := r != nil && r.preStart
	if needed {
		p = r.plugin
	}
	m.mu.Unlock()
	switch {
	case !needed:
		return nil
	case p == nil:
		return fmt.Errorf("endpoint not found in cache for a registered resource: %s", name)
	}
	return p.preStart(ctx, sortedKeys(g.devices))
}

// addAnswer adds what a plug-in has answered. Of two plug-ins that name the same variable, path or annotation the first
// counts.
func addAnswer(to *criconfig.Allocation, answer *pluginapi.ContainerAllocateResponse) {
	for _, k := range sortedKeys(answer.Envs) {
		if !slices.ContainsFunc(to.Env, func(e *runtimeapi.KeyValue) bool { return e.Key == k }) {
			to.Env = append(to.Env, &runtimeapi.KeyValue{Key: k, Value: []byte(answer.Envs[k])})
		}
	}
	for _, d := range answer.Devices {
		if !slices.ContainsFunc(to.Devices, func(o *runtimeapi.Device) bool { return o.ContainerPath == d.ContainerPath }) {
			to.Devices = append(to.Devices, &runtimeapi.Device{HostPath: d.HostPath, ContainerPath: d.ContainerPath, Permissions: d.Permissions})
		}
	}
	for _, mount := range answer.Mounts {
		if !slices.ContainsFunc(to.Mounts, func(o *runtimeapi.Mount) bool { return o.ContainerPath == mount.ContainerPath }) {
			to.Mounts = append(to.Mounts, &runtimeapi.Mount{HostPath: mount.HostPath, ContainerPath: mount.ContainerPath, Readonly: mount.ReadOnly})
		}
	}
	if to.Annotations == nil {
		to.Annotations = map[string]string{}
	}
	for k, v := range answer.Annotations {
		if _, taken := to.Annotations[k]; !taken {
			to.Annotations[k] = v
		}
	}
	for _, d := range answer.CdiDevices {
		if !slices.ContainsFunc(to.CDIDevices, func(o *runtimeapi.CDIDevice) bool { return o.Name == d.Name }) {
			to.CDIDevices = append(to.CDIDevices, &runtimeapi.CDIDevice{Name: d.Name})
		}
	}
}

// fileName is the file in Config.Dir that holds the grants.
const fileName = "balsa_allocations.json"

// savedState is the content of the file.
type savedState struct {
	Resources []string     `json:"resources"`
	Grants    []savedGrant `json:"grants"`
}

type savedGrant struct {
	Pod       types.UID                 `json:"pod"`
	Container string                    `json:"container"`
	Resource  string                    `json:"resource"`
	Devices   map[string]topology.Nodes `json:"devices"`
	Answer    []byte                    `json:"answer"` // a ContainerAllocateResponse
}

// save writes the file, and returns when its content is on the disk.
func (m *Manager) save() error {
	m.disk.Lock()
	defer m.disk.Unlock()
	state, err := m.state()
	if err != nil {
		return err
	}
	content, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.cfg.Dir, 0o750); err != nil {
		return err
	}
	f, err := atomicfile.New(filepath.Join(m.cfg.Dir, fileName), 0o600)
	if err != nil {
		return fmt.Errorf("allocations of devices: %w", err)
	}
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("allocations of devices: %w", errors.Join(err, f.Cancel()))
	}
	return f.Close()
}

func (m *Manager) saveOrWarn() {
	if err := m.save(); err != nil {
		m.log.Warn("allocations of devices not written; the next start of the agent takes them up as they were before", "err", err)
	}
}

func (m *Manager) state() (savedState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := savedState{Resources: sortedKeys(m.resources), Grants: []savedGrant{}}
	for _, uid := range slices.Sorted(maps.Keys(m.pods)) {
		for _, container := range sortedKeys(m.pods[uid]) {
			for _, name := range sortedKeys(m.pods[uid][container]) {
				g := m.pods[uid][container][name]
				answer, err := proto.Marshal(g.answer)
				if err != nil {
					return s, fmt.Errorf("allocation response of %s: %w", name, err)
				}
				s.Grants = append(s.Grants, savedGrant{uid, container, name, g.devices, answer})
			}
		}
	}
	return s, nil
}

// load reads the file. One that cannot be read is an error: the devices in it could be given away a second time.
func (m *Manager) load(now time.Time) error {
	path := filepath.Join(m.cfg.Dir, fileName)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocations of devices: %w", err)
	}
	var s savedState
	if err := json.Unmarshal(content, &s); err != nil {
		return fmt.Errorf("allocations of devices: %s: %w; remove the file when no pod of this node uses devices", path, err)
	}
	for _, name := range s.Resources {
		m.resources[name] = newResource(now)
	}
	for _, g := range s.Grants {
		answer := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(g.Answer, answer); err != nil {
			return fmt.Errorf("allocations of devices: %s: %w; remove the file when no pod of this node uses devices", path, err)
		}
		if m.resources[g.Resource] == nil {
			m.resources[g.Resource] = newResource(now)
		}
		m.insert(g.Pod, g.Container, g.Resource, &grant{g.Devices, answer})
	}
	return nil
}
