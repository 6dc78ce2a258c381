package deviceplugin

import (
	"time"

	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/topology"
)

// Capacity returns how many devices there are of each resource, and how many of them are healthy. A resource whose plug-in
// went stays with 0, as upstream's does, so that it is seen to have been there.
func (m *Manager) Capacity(now time.Time) (capacity, allocatable v1.ResourceList) {
	capacity, allocatable = v1.ResourceList{}, v1.ResourceList{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, r := range m.resources {
		healthy := 0
		for _, d := range r.devices {
			if r.usable(d) {
				healthy++
			}
		}
		if r.expired(now) {
			r.devices = nil
		}
		capacity[v1.ResourceName(name)] = *quantity.NewQuantity(int64(len(r.devices)), quantity.DecimalSI)
		allocatable[v1.ResourceName(name)] = *quantity.NewQuantity(int64(healthy), quantity.DecimalSI)
	}
	return capacity, allocatable
}

// Manages reports whether the resource is one of device plug-ins.
func (m *Manager) Manages(name v1.ResourceName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resources[string(name)] != nil
}

// Health returns the devices of a container with their health, nil when it has none. A device of which no plug-in has said
// anything since the agent's start is unknown.
func (m *Manager) Health(uid types.UID, container string) []v1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []v1.ResourceStatus
	for _, name := range sortedKeys(m.pods[uid][container]) {
		s := v1.ResourceStatus{Name: v1.ResourceName(name)}
		for _, id := range sortedKeys(m.pods[uid][container][name].devices) {
			h := v1.ResourceHealth{ResourceID: v1.ResourceID(id), Health: v1.ResourceHealthStatusUnknown}
			if r := m.resources[name]; r != nil {
				if d, listed := r.devices[id]; listed && d.healthy {
					h.Health = v1.ResourceHealthStatusHealthy
				} else if listed {
					h.Health = v1.ResourceHealthStatusUnhealthy
				}
			}
			s.Resources = append(s.Resources, h)
		}
		out = append(out, s)
	}
	return out
}

// Listed is one device of a resource.
type Listed struct {
	Resource, ID string
	Nodes        topology.Nodes
}

// Devices lists the devices of a container.
func (m *Manager) Devices(uid types.UID, container string) (out []Listed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range sortedKeys(m.pods[uid][container]) {
		g := m.pods[uid][container][name]
		for _, id := range sortedKeys(g.devices) {
			out = append(out, Listed{name, id, g.devices[id]})
		}
	}
	return out
}

// AllDevices lists the devices that can be given to containers, given or not.
func (m *Manager) AllDevices() (out []Listed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range sortedKeys(m.resources) {
		r := m.resources[name]
		for _, id := range sortedKeys(r.devices) {
			if r.usable(r.devices[id]) {
				out = append(out, Listed{name, id, r.devices[id].nodes})
			}
		}
	}
	return out
}
