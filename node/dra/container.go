package dra

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/criconfig"
)

// ForContainer adds the CDI devices of the container's claims to what it gets.
func (m *Manager) ForContainer(pod *v1.Pod, c *v1.Container, to *criconfig.Allocation) error {
	uses, err := usesOf(pod, c)
	if err != nil || len(uses) == 0 {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range uses {
		claim := m.claims[u.claim]
		if claim == nil || !claim.Prepared {
			return fmt.Errorf("ResourceClaim %s is not prepared", u.claim)
		}
		for _, d := range claim.devicesOf(u.request) {
			for _, id := range d.CDI {
				if !slices.ContainsFunc(to.CDIDevices, func(have *runtimeapi.CDIDevice) bool { return have.Name == id }) {
					to.CDIDevices = append(to.CDIDevices, &runtimeapi.CDIDevice{Name: id})
				}
			}
		}
	}
	return nil
}

// Health returns the devices of a container's claims with their health (KEP-4680); nil: it has none.
func (m *Manager) Health(pod *v1.Pod, container string) (out []v1.ResourceStatus) {
	i := slices.IndexFunc(pod.Spec.Containers, func(c v1.Container) bool { return c.Name == container })
	if i < 0 || len(pod.Spec.Containers[i].Resources.Claims) == 0 {
		return nil
	}
	uses, err := usesOf(pod, &pod.Spec.Containers[i])
	if err != nil {
		return nil // the claims are not made yet
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range uses {
		claim := m.claims[u.claim]
		if u.title == "" || claim == nil {
			continue
		}
		status := v1.ResourceStatus{Name: v1.ResourceName(u.title)}
		for _, d := range claim.devicesOf(u.request) {
			h := v1.ResourceHealth{ResourceID: v1.ResourceID(fmt.Sprintf("%s/%s/%s", d.driver, d.Pool, d.Name)), Health: m.healthOf(d)}
			if len(d.CDI) > 0 {
				h.ResourceID = v1.ResourceID(d.CDI[0])
			}
			if !slices.ContainsFunc(status.Resources, func(have v1.ResourceHealth) bool { return have.ResourceID == h.ResourceID }) {
				status.Resources = append(status.Resources, h)
			}
		}
		if len(status.Resources) > 0 {
			out = append(out, status)
		}
	}
	return out
}
