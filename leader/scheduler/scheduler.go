package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/scheduler/devices"
	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// DefaultName is the spec.schedulerName of pods that name no scheduler.
const DefaultName = v1.DefaultSchedulerName

// defaultBinders is enough concurrent writes that the store can group them into few syncs.
const defaultBinders = 64

// Config is the configuration of a Scheduler.
type Config struct {
	// Client writes bindings, pod status, claims, events, and deletes victims.
	Client kubernetes.Interface
	// Informers are shared; Run starts those that the scheduler uses and does not stop them.
	Informers informers.SharedInformerFactory
	// Recorder receives events; nil: the scheduler records through Client itself.
	Recorder events.EventRecorder
	// Settings say how pods are placed, by spec.schedulerName; without profiles they are profile.Default's.
	Settings profile.Settings
	// Clock times back-off; nil is the real one.
	Clock clock.Clock
	// Rand chooses between nodes with equal scores; nil is seeded at random.
	Rand *rand.Rand
	// Logger; nil is slog.Default.
	Logger *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("scheduler: Client is missing"))
	}
	if c.Informers == nil {
		errs = append(errs, errors.New("scheduler: Informers are missing"))
	}
	if c.Settings.Binders < 0 {
		errs = append(errs, fmt.Errorf("scheduler: Settings.Binders is negative: %d", c.Settings.Binders))
	}
	return errors.Join(errs...)
}

func (c *Config) fill() {
	if len(c.Settings.Profiles) == 0 {
		c.Settings.Profiles = profile.Default().Profiles
	}
	if c.Settings.VolumeWait == 0 {
		c.Settings.VolumeWait = volumeWait
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if c.Settings.Binders == 0 {
		c.Settings.Binders = defaultBinders
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Scheduler places pods. Make one per term of leadership.
type Scheduler struct {
	cfg       Config
	recorders map[string]events.EventRecorder // by profile
	queue     *queue.Queue
	nominator *queue.Nominator
	cache     *snapshot.Cache
	pods      corelisters.PodLister
	budgets   policylisters.PodDisruptionBudgetLister
	listers   *rules.Listers
	volumes   *volumeBook

	// Used by the goroutine of Run only.
	snapshot *snapshot.Snapshot
	deciders map[string]*decider // by profile

	// writes joins the goroutines that write to the API; slots bounds them.
	writes sync.WaitGroup
	slots  chan struct{}
}

// New returns a scheduler. It starts nothing.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.fill()
	registerMetrics()
	var filters [][]rules.Filter
	deciders, recorders := map[string]*decider{}, map[string]events.EventRecorder{}
	for _, p := range cfg.Settings.Profiles {
		filters = append(filters, p.Filters)
		deciders[p.Name] = newDecider(p, cfg.Rand)
		recorders[p.Name] = cfg.Recorder
	}
	s := &Scheduler{
		cfg:       cfg,
		recorders: recorders,
		queue:     queue.New(queue.Config{Clock: cfg.Clock, Hints: rules.Hints(filters...), Backoff: cfg.Settings.Backoff, MaxBackoff: cfg.Settings.MaxBackoff}),
		nominator: queue.NewNominator(),
		cache:     snapshot.NewCache(),
		pods:      cfg.Informers.Core().V1().Pods().Lister(),
		budgets:   cfg.Informers.Policy().V1().PodDisruptionBudgets().Lister(),
		volumes:   newVolumeBook(),
		snapshot:  snapshot.New(),
		deciders:  deciders,
		slots:     make(chan struct{}, cfg.Settings.Binders),
	}
	var err error
	s.listers, err = s.newListers()
	return s, err
}

func (s *Scheduler) newListers() (*rules.Listers, error) {
	core, apps, storage := s.cfg.Informers.Core().V1(), s.cfg.Informers.Apps().V1(), s.cfg.Informers.Storage().V1()
	volumes, capacities := core.PersistentVolumes().Informer().GetIndexer(), storage.CSIStorageCapacities().Informer().GetIndexer()
	resources := s.cfg.Informers.Resource().V1()
	claims := resources.ResourceClaims().Informer().GetIndexer()
	if err := errors.Join(rules.IndexVolumes(volumes), rules.IndexCapacities(capacities), devices.IndexClaims(claims)); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	return &rules.Listers{
		Namespaces:      core.Namespaces().Lister(),
		Services:        core.Services().Lister(),
		Controllers:     core.ReplicationControllers().Lister(),
		ReplicaSets:     apps.ReplicaSets().Lister(),
		StatefulSets:    apps.StatefulSets().Lister(),
		Claims:          core.PersistentVolumeClaims().Lister(),
		Volumes:         core.PersistentVolumes().Lister(),
		StorageClasses:  storage.StorageClasses().Lister(),
		CSINodes:        storage.CSINodes().Lister(),
		CSIDrivers:      storage.CSIDrivers().Lister(),
		VolumeIndex:     volumes,
		CapacityIndex:   capacities,
		ReservedVolumes: s.volumes.owner,
		Devices: devices.New(devices.Config{
			Claims: claims, Classes: resources.DeviceClasses().Lister(), Slices: resources.ResourceSlices().Lister(), Clock: s.cfg.Clock,
		}),
	}, nil
}

// Run schedules until ctx ends. It returns when every goroutine that it started has ended.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.cfg.Recorder == nil {
		stop, err := s.record(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	remove, synced, err := s.watch()
	defer remove()
	if err != nil {
		return err
	}
	running.Store(s)
	defer running.Store(nil)
	defer s.writes.Wait() // before the handlers are removed and the recorder stops
	s.cfg.Informers.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", synced...) {
		return ctx.Err()
	}
	s.cfg.Logger.Info("scheduler started", "profiles", strings.Join(slices.Sorted(maps.Keys(s.deciders)), ","), "nodes", s.cache.NodeCount())
	for {
		item, err := s.queue.Pop(ctx)
		if err != nil {
			return err
		}
		s.attempt(ctx, item)
	}
}

// recorder returns the event recorder of the pod's profile.
func (s *Scheduler) recorder(pod *v1.Pod) events.EventRecorder {
	return s.recorders[pod.Spec.SchedulerName]
}

// record makes an event recorder for each profile that writes through Client.
func (s *Scheduler) record(ctx context.Context) (stop func(), err error) {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.cfg.Client.EventsV1()})
	for name := range s.recorders {
		s.recorders[name] = b.NewRecorder(scheme.Scheme, name)
	}
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("scheduler: record events: %w", err)
	}
	return b.Shutdown, nil
}

// write runs fn in a goroutine; it blocks while Settings.Binders of them run.
func (s *Scheduler) write(ctx context.Context, fn func()) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	s.writes.Go(func() {
		defer func() { <-s.slots }()
		_ = fault.Do(unit, fn)
	})
}
