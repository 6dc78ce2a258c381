package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/fault"
)

const (
	// wipeDelay is how long a driver may be gone until its ResourceSlices are deleted, as upstream. Until then an update of the driver
	// costs nothing.
	wipeDelay = 30 * time.Second
	// wipeRetry and wipeRetryMax bound the pause before a deletion that failed is tried again.
	wipeRetry    = time.Second
	wipeRetryMax = 5 * time.Minute
)

// Register takes a driver's endpoint in. An endpoint with the same path is replaced.
func (m *Manager) Register(_ context.Context, info *registerapi.PluginInfo, path string) error {
	if info.Name == "" {
		return errors.New("DRA driver name is empty")
	}
	e, err := dial(info.Name, path, info.SupportedVersions)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running == nil {
		e.conn.Close()
		return errors.New("the agent is stopping")
	}
	m.removeEndpoint(info.Name, path)
	ctx, stop := context.WithCancel(m.running)
	e.stop = stop
	m.drivers[info.Name] = append(m.drivers[info.Name], e)
	m.joined.Go(fault.Contained(unit, func() {
		e.follow(ctx, func(connected bool) { m.connection(e, connected) })
	}))
	m.joined.Go(fault.Contained(unit, func() { m.followHealth(ctx, e) }))
	m.log.Info("DRA driver registered", "driver", info.Name, "endpoint", path, "service", e.service)
	return nil
}

// Gone takes an endpoint out whose registration socket has gone, unless it was made anew.
func (m *Manager) Gone(_ context.Context, info *registerapi.PluginInfo, path string, replaced Replacement) {
	if replaced == SamePath {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeEndpoint(info.Name, path)
	m.log.Info("DRA driver's endpoint gone", "driver", info.Name, "endpoint", path, "left", len(m.drivers[info.Name]))
	m.scheduleWipe(info.Name)
}

// removeEndpoint closes the connection to an endpoint, if there is one. m.mu is held.
func (m *Manager) removeEndpoint(driver, path string) {
	m.drivers[driver] = slices.DeleteFunc(m.drivers[driver], func(e *endpoint) bool {
		if e.path != path {
			return false
		}
		e.stop()
		e.conn.Close()
		return true
	})
	if len(m.drivers[driver]) == 0 {
		delete(m.drivers, driver)
	}
}

func (m *Manager) connection(e *endpoint, connected bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.connected == connected {
		return
	}
	e.connected = connected
	m.scheduleWipe(e.driver)
}

// scheduleWipe notes when the driver's slices are to be deleted, and forgets it when the driver can be reached. m.mu is held.
func (m *Manager) scheduleWipe(driver string) {
	if slices.ContainsFunc(m.drivers[driver], func(e *endpoint) bool { return e.connected }) {
		delete(m.wipes, driver)
		return
	}
	if _, noted := m.wipes[driver]; !noted {
		m.wipes[driver] = wipe{at: time.Now().Add(wipeDelay)}
		m.nudge()
	}
}

// wipe is a deletion of a driver's slices that is due.
type wipe struct {
	at    time.Time
	pause time.Duration
}

func (m *Manager) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// wipeDue deletes the slices of drivers whose time has come, and returns when to look again.
func (m *Manager) wipeDue(ctx context.Context) (next time.Time) {
	m.mu.Lock()
	var due []string
	now := time.Now()
	for driver, w := range m.wipes {
		if !w.at.After(now) {
			due = append(due, driver)
		}
	}
	m.mu.Unlock()
	for _, driver := range due {
		m.wiped(driver, m.wipeSlices(ctx, driver))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.wipes {
		if next.IsZero() || w.at.Before(next) {
			next = w.at
		}
	}
	return next
}

// wiped notes the outcome: a deletion that failed is tried again after a pause that doubles.
func (m *Manager) wiped(driver string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w, still := m.wipes[driver]
	switch {
	case !still:
	case err == nil:
		delete(m.wipes, driver)
	default:
		w.pause = min(max(2*w.pause, wipeRetry), wipeRetryMax)
		w.at = time.Now().Add(w.pause)
		m.wipes[driver] = w
		m.log.Warn("cannot delete the ResourceSlices of a driver that is gone; tries again", "driver", driver, "after", w.pause, "err", err)
	}
}

// wipeSlices deletes this node's ResourceSlices of a driver; "" is all drivers.
func (m *Manager) wipeSlices(ctx context.Context, driver string) error {
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: m.cfg.NodeName}
	if driver != "" {
		selector[resourceapi.ResourceSliceSelectorDriver] = driver
	}
	err := m.cfg.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: selector.String()})
	if err == nil && driver != "" {
		m.log.Info("deleted the ResourceSlices of a driver that is gone: its devices are not allocated until it is back", "driver", driver)
	}
	return err
}

// driver returns the endpoint to call: the newest that is connected, else the newest.
func (m *Manager) driver(name string) (*endpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.drivers[name]
	if len(all) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	for _, e := range slices.Backward(all) {
		if e.connected {
			return e, nil
		}
	}
	return all[len(all)-1], nil
}
