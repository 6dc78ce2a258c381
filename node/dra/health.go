package dra

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

const (
	// healthTimeout is how long a device's health counts that its driver does not repeat, unless the driver says otherwise.
	healthTimeout = 30 * time.Second
	healthRetry   = 5 * time.Second
)

type deviceName struct{ driver, pool, device string }

type deviceHealth struct {
	health v1.ResourceHealthStatus
	until  time.Time
}

// healthOf returns the health of a device; unknown when its driver has not said it for a while. m.mu is held.
func (m *Manager) healthOf(d driverDevice) v1.ResourceHealthStatus {
	h, ok := m.health[deviceName{d.driver, d.Pool, d.Name}]
	if !ok || time.Now().After(h.until) {
		return v1.ResourceHealthStatusUnknown
	}
	return h.health
}

// followHealth takes in what a driver says of the health of its devices until ctx ends. Most drivers say nothing.
func (m *Manager) followHealth(ctx context.Context, e *endpoint) {
	for {
		err := m.readHealth(ctx, e)
		if grpcstatus.Code(err) == codes.Unimplemented {
			return
		}
		timer := time.NewTimer(healthRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (m *Manager) readHealth(ctx context.Context, e *endpoint) error {
	stream, err := healthpb.NewDRAResourceHealthClient(e.conn).NodeWatchResources(ctx, &healthpb.NodeWatchResourcesRequest{})
	if err != nil {
		return err
	}
	defer m.forgetHealth(e.driver)
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if changed := m.takeHealth(e.driver, answer.GetDevices()); len(changed) > 0 {
			m.cfg.HealthChanged(changed)
		}
	}
}

// takeHealth returns the pods with a device whose health has changed.
func (m *Manager) takeHealth(driver string, devices []*healthpb.DeviceHealth) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := map[types.UID]bool{}
	for _, d := range devices {
		name := deviceName{driver, d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}
		before := m.health[name].health
		now := newHealth(d)
		m.health[name] = now
		if before != now.health {
			m.usersOf(name, changed)
		}
	}
	return slices.Collect(maps.Keys(changed))
}

func newHealth(d *healthpb.DeviceHealth) deviceHealth {
	h := deviceHealth{health: v1.ResourceHealthStatusUnknown, until: time.Unix(d.GetLastUpdatedTime(), 0).Add(healthTimeout)}
	if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
		h.until = time.Unix(d.GetLastUpdatedTime(), 0).Add(time.Duration(s) * time.Second)
	}
	switch d.GetHealth() {
	case healthpb.HealthStatus_HEALTHY:
		h.health = v1.ResourceHealthStatusHealthy
	case healthpb.HealthStatus_UNHEALTHY:
		h.health = v1.ResourceHealthStatusUnhealthy
	}
	return h
}

// usersOf adds the pods that use a device. m.mu is held.
func (m *Manager) usersOf(name deviceName, to map[types.UID]bool) {
	for _, c := range m.claims {
		if slices.ContainsFunc(c.Drivers[name.driver], func(d device) bool { return d.Pool == name.pool && d.Name == name.device }) {
			for _, pod := range c.Pods {
				to[pod] = true
			}
		}
	}
}

func (m *Manager) forgetHealth(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.health, func(n deviceName, _ deviceHealth) bool { return n.driver == driver })
}
