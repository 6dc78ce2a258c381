package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/balsahq/balsa/node/pluginwatcher"
)

const unit = "node/dra"

// Replacement is what stands in for an endpoint whose registration socket has gone.
type Replacement = pluginwatcher.Replacement

// SamePath says that a socket was made anew under the same path.
const SamePath = pluginwatcher.SamePath

// Config is what a Manager needs.
type Config struct {
	RootDir  string // of the agent; holds the record
	NodeName string
	// Client acts as the node: it reads ResourceClaims and deletes the node's ResourceSlices.
	Client kubernetes.Interface
	// HealthChanged is called with the pods whose devices changed their health.
	HealthChanged func([]types.UID)
	Logger        *slog.Logger
}

// Manager prepares the claims of this node's pods. Methods are safe for concurrent use.
type Manager struct {
	cfg    Config
	log    *slog.Logger
	wake   chan struct{}
	joined sync.WaitGroup

	mu      sync.Mutex
	running context.Context // of Run; nil while it does not run
	drivers map[string][]*endpoint
	wipes   map[string]wipe
	claims  map[key]*claim
	locks   map[key]*claimLock
	health  map[deviceName]deviceHealth
}

// New returns a Manager with the claims of the record. It starts nothing.
func New(cfg Config) (*Manager, error) {
	claims, err := load(filepath.Join(cfg.RootDir, recordName))
	if err != nil {
		return nil, err
	}
	return &Manager{
		cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), drivers: map[string][]*endpoint{}, wipes: map[string]wipe{},
		claims: claims, locks: map[key]*claimLock{}, health: map[deviceName]deviceHealth{},
	}, nil
}

// Run deletes the slices of drivers that are gone until ctx ends, and then closes the connections. At the start it deletes those of
// all drivers: which of them still run is not known, and those that do publish their slices again.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.begin(ctx)
	defer m.end()
	for {
		next := m.wipeDue(ctx)
		wait := time.Hour
		if !next.IsZero() {
			wait = max(0, time.Until(next))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-m.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (m *Manager) begin(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = ctx
	m.wipes[""] = wipe{at: time.Now()}
}

func (m *Manager) end() {
	m.mu.Lock()
	m.running = nil
	for name, all := range m.drivers {
		for _, e := range all {
			e.stop()
			e.conn.Close()
		}
		delete(m.drivers, name)
	}
	m.mu.Unlock()
	m.joined.Wait()
}

// Wants reports whether the pod has claims that must be prepared before it starts.
func (m *Manager) Wants(pod *v1.Pod) bool { return len(entries(pod)) > 0 }

// claimLock is the lock of one claim, with how many use it.
type claimLock struct {
	sync.Mutex
	users int
}

// lock locks the claims, in the order of their names, and returns what unlocks them.
func (m *Manager) lock(keys []key) (unlock func()) {
	keys = slices.Clone(keys)
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.String(), b.String()) })
	keys = slices.Compact(keys)
	held := make([]*claimLock, len(keys))
	for i, k := range keys {
		m.mu.Lock()
		l := m.locks[k]
		if l == nil {
			l = &claimLock{}
			m.locks[k] = l
		}
		l.users++
		held[i] = l
		m.mu.Unlock()
		l.Lock()
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for i, l := range held {
			l.Unlock()
			if l.users--; l.users == 0 {
				delete(m.locks, keys[i])
			}
		}
	}
}

// Prepare has the drivers prepare the pod's claims. It may be called again after an error, and does nothing for what is prepared.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) error {
	if err := m.prepare(ctx, pod); err != nil {
		return fmt.Errorf("prepare dynamic resources: %w", err)
	}
	return nil
}

func (m *Manager) prepare(ctx context.Context, pod *v1.Pod) error {
	found, err := m.read(ctx, pod)
	if err != nil {
		return err
	}
	keys := make([]key, len(found))
	for i, c := range found {
		keys[i] = key{c.Namespace, c.Name}
	}
	defer m.lock(keys)()
	batches, err := m.enter(found, pod.UID)
	if err != nil {
		return err
	}
	for driver, claims := range batches {
		if err := m.prepareWith(ctx, driver, claims); err != nil {
			return err
		}
	}
	return m.prepared(keys)
}

// read returns the pod's claims from the API. It checks that each is the pod's to use, and that its drivers are here.
func (m *Manager) read(ctx context.Context, pod *v1.Pod) (found []*resourceapi.ResourceClaim, err error) {
	for _, entry := range entries(pod) {
		name, mustOwn, err := resourceclaim.Name(pod, &entry)
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // the entry needs no claim
		}
		c, err := m.cfg.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("fetch ResourceClaim %s: %w", *name, err)
		}
		if mustOwn {
			if err := resourceclaim.IsForPod(pod, c, false); err != nil {
				return nil, err
			}
		}
		if !resourceclaim.IsReservedForPod(pod, c, false) {
			return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, *name, c.UID)
		}
		fresh, err := newClaim(c)
		if err != nil {
			return nil, err
		}
		for driver := range fresh.Drivers {
			if _, err := m.driver(driver); err != nil {
				return nil, err
			}
		}
		found = append(found, c)
	}
	return found, nil
}

// enter records that the pod uses the claims, and returns what each driver has to prepare.
func (m *Manager) enter(found []*resourceapi.ResourceClaim, pod types.UID) (map[string][]*drapb.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	batches := map[string][]*drapb.Claim{}
	for _, from := range found {
		k := key{from.Namespace, from.Name}
		c := m.claims[k]
		if c == nil {
			fresh, err := newClaim(from)
			if err != nil {
				return nil, err
			}
			c = fresh
		}
		if err := c.take(from, pod); err != nil {
			return nil, err
		}
		m.claims[k] = c
		if c.Prepared {
			continue
		}
		for driver := range c.Drivers {
			if !slices.ContainsFunc(batches[driver], func(b *drapb.Claim) bool { return b.Uid == string(c.UID) }) {
				batches[driver] = append(batches[driver], c.message())
			}
		}
	}
	return batches, m.save()
}

func (m *Manager) prepareWith(ctx context.Context, driver string, claims []*drapb.Claim) error {
	e, err := m.driver(driver)
	if err != nil {
		return err
	}
	answers, err := e.prepare(ctx, claims)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range claims {
		answer, ok := answers[c.Uid]
		if !ok {
			return fmt.Errorf("NodePrepareResources skipped ResourceClaim %s", c.Name)
		}
		if answer.GetError() != "" {
			return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", c.Name, answer.GetError())
		}
		var devices []device
		for _, d := range answer.GetDevices() {
			devices = append(devices, device{Pool: d.GetPoolName(), Name: d.GetDeviceName(), Requests: d.GetRequestNames(), CDI: d.GetCdiDeviceIds()})
		}
		m.claims[key{c.Namespace, c.Name}].Drivers[driver] = devices
	}
	return nil
}

func (m *Manager) prepared(keys []key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		m.claims[k].Prepared = true
	}
	return m.save()
}

// Unprepare takes back the claims of a pod whose containers have ended. A claim that another pod of this node uses stays prepared.
func (m *Manager) Unprepare(ctx context.Context, pod types.UID) error {
	m.mu.Lock()
	var keys []key
	for k, c := range m.claims {
		if slices.Contains(c.Pods, pod) {
			keys = append(keys, k)
		}
	}
	m.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	defer m.lock(keys)()
	var errs []error
	for driver, claims := range m.last(keys, pod) {
		errs = append(errs, m.unprepareWith(ctx, driver, claims))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unprepare dynamic resources: %w", err)
	}
	return m.leave(keys, pod)
}

// last returns, by driver, the claims that no pod but this one uses.
func (m *Manager) last(keys []key, pod types.UID) map[string][]*drapb.Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	batches := map[string][]*drapb.Claim{}
	for _, k := range keys {
		c := m.claims[k]
		if c == nil || len(c.Pods) != 1 || c.Pods[0] != pod {
			continue
		}
		for driver := range c.Drivers {
			batches[driver] = append(batches[driver], c.message())
		}
	}
	return batches
}

func (m *Manager) unprepareWith(ctx context.Context, driver string, claims []*drapb.Claim) error {
	e, err := m.driver(driver)
	if err != nil {
		return err
	}
	done, err := e.unprepare(ctx, claims)
	if err != nil {
		return err
	}
	for _, c := range claims {
		failure, ok := done[c.Uid]
		if !ok {
			return fmt.Errorf("NodeUnprepareResources skipped ResourceClaim %s", c.Name)
		}
		if failure != "" {
			return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", c.Name, failure)
		}
	}
	return nil
}

// leave takes the pod out of the record, and the claims that no pod uses.
func (m *Manager) leave(keys []key, pod types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		c := m.claims[k]
		if c == nil {
			continue
		}
		c.Pods = slices.DeleteFunc(c.Pods, func(uid types.UID) bool { return uid == pod })
		if len(c.Pods) == 0 {
			delete(m.claims, k)
		}
	}
	return m.save()
}

// UnprepareFormer takes back the claims of pods that are no more, which ended while the agent did not run.
func (m *Manager) UnprepareFormer(ctx context.Context, there func(types.UID) bool) error {
	m.mu.Lock()
	former := map[types.UID]bool{}
	for _, c := range m.claims {
		for _, pod := range c.Pods {
			former[pod] = true
		}
	}
	m.mu.Unlock()
	var errs []error
	for pod := range former {
		if !there(pod) {
			errs = append(errs, m.Unprepare(ctx, pod))
		}
	}
	return errors.Join(errs...)
}
