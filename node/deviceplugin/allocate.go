package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/node/topology"
)

// request is how many devices of a resource a container wants.
type request struct {
	pod       *v1.Pod
	container *v1.Container
	resource  string
	want      int
}

// requests returns what a container wants of resources that device plug-ins have here, by name. Limits equal requests for
// such resources. A resource that is mapped to a ResourceClaim is allocated with the claim.
func (m *Manager) requests(pod *v1.Pod, c *v1.Container) (out []request) {
	for name, q := range c.Resources.Limits {
		if !q.IsZero() && m.Manages(name) && !isClaimed(pod, c.Name, string(name)) {
			out = append(out, request{pod, c, string(name), int(q.Value())})
		}
	}
	slices.SortFunc(out, func(a, b request) int {
		if a.resource < b.resource {
			return -1
		}
		return 1
	})
	return out
}

func isClaimed(pod *v1.Pod, container, resource string) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}

// Wants reports whether a container of the pod wants devices.
func (m *Manager) Wants(pod *v1.Pod) bool { return len(m.resourcesOf(pod)) > 0 }

func (m *Manager) resourcesOf(pod *v1.Pod) []string {
	names := map[string]bool{}
	for _, cs := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range cs {
			for _, r := range m.requests(pod, &cs[i]) {
				names[r.resource] = true
			}
		}
	}
	return sortedKeys(names)
}

// TakeTurn waits until no other pod has its turn at a resource that this pod wants, and returns what ends the pod's turn.
func (m *Manager) TakeTurn(ctx context.Context, pod *v1.Pod) (end func(), err error) {
	var taken []chan struct{}
	end = func() {
		for _, turn := range taken {
			<-turn
		}
	}
	for _, name := range m.resourcesOf(pod) { // in the order of names, so that no two pods wait for each other
		m.mu.Lock()
		r := m.resources[name]
		m.mu.Unlock()
		if r == nil {
			continue
		}
		select {
		case r.turn <- struct{}{}:
			taken = append(taken, r.turn)
		case <-ctx.Done():
			end()
			return nil, ctx.Err()
		}
	}
	return end, nil
}

// Allocate gives a container the devices that it wants, near the NUMA nodes of the affinity where it can be. The pod must
// have its turn. Devices that the container has already are kept.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, affinity topology.Nodes) error {
	for _, r := range m.requests(pod, c) {
		if err := m.allocate(ctx, r, affinity); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) allocate(ctx context.Context, req request, affinity topology.Nodes) error {
	p, picked, err := m.choose(ctx, req, affinity)
	if err != nil || len(picked) == 0 {
		return err
	}
	answer, err := p.allocate(ctx, picked)
	if err != nil {
		return err
	}
	m.mu.Lock()
	g := &grant{devices: map[string]topology.Nodes{}, answer: answer}
	for _, id := range picked {
		g.devices[id] = m.resources[req.resource].devices[id].nodes
	}
	if err := ctx.Err(); err != nil { // the pod is on its way out, and may have been released
		m.mu.Unlock()
		return err
	}
	m.insert(req.pod.UID, req.container.Name, req.resource, g)
	m.mu.Unlock()
	if err := m.save(); err != nil {
		m.Release(req.pod.UID)
		return err
	}
	return nil
}

// choose returns the devices to give to a container, and the plug-in to ask; none when the container has its devices. It
// holds no lock while the plug-in says what it prefers: the pod's turn keeps the devices free.
func (m *Manager) choose(ctx context.Context, req request, affinity topology.Nodes) (*plugin, []string, error) {
	m.mu.Lock()
	p, available, reuse, err := m.candidates(req)
	m.mu.Unlock()
	if err != nil || p == nil {
		return nil, nil, err
	}
	c := &chosen{want: req.want, taken: map[string]bool{}}
	c.take(sortedKeys(reuse))
	if c.missing() == 0 {
		return p, c.ids, nil
	}
	if len(available) < c.missing() {
		return nil, nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", req.resource, c.missing(), len(available))
	}
	aligned, others, anywhere := near(available, affinity)
	offer := aligned
	if c.missing() >= len(aligned) { // all aligned ones are needed; the plug-in chooses among the rest
		c.take(aligned)
		offer = sortedKeys(available)
	}
	if c.missing() > 0 {
		preferred, err := p.prefer(ctx, slices.Concat(offer, intersect(c.ids, sortedKeys(reuse))), c.ids, req.want)
		if err != nil {
			return nil, nil, err
		}
		c.take(intersect(preferred, offer))
	}
	for _, rest := range [][]string{aligned, others, anywhere} {
		c.take(rest)
	}
	return p, c.ids, nil
}

var errUnhealthy = errors.New("previously allocated devices are no longer healthy; cannot allocate unhealthy devices")

// candidates returns the plug-in of a resource, the devices that no container has, and those that ended init containers of
// the pod leave to it. The plug-in is nil when the container has its devices. The texts are upstream's; the lock is held.
func (m *Manager) candidates(req request) (p *plugin, available map[string]device, reuse map[string]bool, err error) {
	r := m.resources[req.resource]
	had := m.pods[req.pod.UID][req.container.Name][req.resource]
	if had != nil && len(had.devices) != req.want {
		return nil, nil, nil, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d",
			req.pod.UID, req.container.Name, req.resource, len(had.devices), req.want)
	}
	if had != nil && (r == nil || r.devices == nil) {
		return nil, nil, nil, nil // the agent has started again, and the plug-in has not listed its devices yet
	}
	if r == nil || r.plugin == nil && r.devices == nil {
		return nil, nil, nil, fmt.Errorf("cannot allocate unregistered device %s", req.resource)
	}
	healthy := map[string]device{}
	for id, d := range r.devices {
		if r.usable(d) {
			healthy[id] = d
		}
	}
	if had != nil {
		for id := range had.devices {
			if _, ok := healthy[id]; !ok {
				return nil, nil, nil, fmt.Errorf("%w %s", errUnhealthy, req.resource)
			}
		}
		return nil, nil, nil, nil
	}
	if len(healthy) == 0 {
		return nil, nil, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", req.resource)
	}
	reuse = m.reusable(req.pod, req.resource)
	for id := range m.inUse(req.resource) {
		delete(healthy, id)
	}
	return r.plugin, healthy, reuse, nil
}

// inUse returns the devices of a resource that containers have; the lock is held.
func (m *Manager) inUse(resource string) map[string]bool {
	used := map[string]bool{}
	for _, containers := range m.pods {
		for _, resources := range containers {
			if g := resources[resource]; g != nil {
				for id := range g.devices {
					used[id] = true
				}
			}
		}
	}
	return used
}

// reusable returns the devices of a pod's init containers that end before the others start, without those that another
// container of the pod has taken over; the lock is held.
func (m *Manager) reusable(pod *v1.Pod, resource string) map[string]bool {
	left, kept := map[string]bool{}, map[string]bool{}
	add := func(to map[string]bool, c *v1.Container) {
		if g := m.pods[pod.UID][c.Name][resource]; g != nil {
			for id := range g.devices {
				to[id] = true
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podutil.IsRestartableInitContainer(c) {
			add(kept, c)
		} else {
			add(left, c)
		}
	}
	for i := range pod.Spec.Containers {
		add(kept, &pod.Spec.Containers[i])
	}
	maps.DeleteFunc(left, func(id string, _ bool) bool { return kept[id] })
	return left
}

// Hints returns from which NUMA nodes the container could have its devices, by resource.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	out := topology.Hints{}
	for _, req := range m.requests(pod, c) {
		m.mu.Lock()
		out[req.resource] = m.hintsFor(req)
		m.mu.Unlock()
	}
	return out
}

// PodHints returns from which NUMA nodes all containers of the pod could have their devices, by resource.
func (m *Manager) PodHints(pod *v1.Pod) topology.Hints {
	whole := &v1.Container{}
	whole.Resources.Limits = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	out := topology.Hints{}
	for _, req := range m.requests(pod, whole) {
		m.mu.Lock()
		out[req.resource] = m.hintsFor(req)
		m.mu.Unlock()
	}
	return out
}

// grantedIDs returns the devices of a container, or with an empty name those of the whole pod; the lock is held.
func (m *Manager) grantedIDs(uid types.UID, container, resource string) map[string]bool {
	own := map[string]bool{}
	for name, resources := range m.pods[uid] {
		if g := resources[resource]; g != nil && (name == container || container == "") {
			for id := range g.devices {
				own[id] = true
			}
		}
	}
	return own
}

// hintsFor returns the hints of one request; the lock is held.
func (m *Manager) hintsFor(req request) []topology.Hint {
	r := m.resources[req.resource]
	if r == nil || !slices.ContainsFunc(slices.Collect(maps.Values(r.devices)), func(d device) bool { return d.nodes != 0 }) {
		return nil
	}
	if own := m.grantedIDs(req.pod.UID, req.container.Name, req.resource); len(own) == req.want {
		return hints(r.devices, own, nil, req.want, m.cfg.NUMANodes)
	}
	available, used := map[string]bool{}, m.inUse(req.resource)
	for id, d := range r.devices {
		available[id] = r.usable(d) && !used[id]
	}
	return hints(r.devices, available, m.reusable(req.pod, req.resource), req.want, m.cfg.NUMANodes)
}

// Release gives back the devices of a pod.
func (m *Manager) Release(uid types.UID) {
	m.mu.Lock()
	had := len(m.pods[uid]) > 0
	delete(m.pods, uid)
	m.mu.Unlock()
	if had {
		m.saveOrWarn()
	}
}

// KeepOnly gives back the devices of the pods that are no more.
func (m *Manager) KeepOnly(there func(types.UID) bool) {
	m.mu.Lock()
	before := len(m.pods)
	maps.DeleteFunc(m.pods, func(uid types.UID, _ podGrants) bool { return !there(uid) })
	changed := len(m.pods) != before
	m.mu.Unlock()
	if changed {
		m.saveOrWarn()
	}
}
