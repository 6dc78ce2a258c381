package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
	// SchedulerName is the spec.schedulerName of the pods that it schedules; "" is DefaultName.
	SchedulerName string
	// Clock times back-off; nil is the real one.
	Clock clock.Clock
	// Rand chooses between nodes with equal scores; nil is seeded at random.
	Rand *rand.Rand
	// Binders is how many pods' API writes may be under way at once; 0 is 64.
	Binders int
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
	if c.Binders < 0 {
		errs = append(errs, fmt.Errorf("scheduler: Binders is negative: %d", c.Binders))
	}
	return errors.Join(errs...)
}

func (c *Config) fill() {
	if c.SchedulerName == "" {
		c.SchedulerName = DefaultName
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if c.Binders == 0 {
		c.Binders = defaultBinders
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Scheduler places pods. Make one per term of leadership.
type Scheduler struct {
	cfg       Config
	recorder  events.EventRecorder
	queue     *queue.Queue
	nominator *queue.Nominator
	cache     *snapshot.Cache
	pods      corelisters.PodLister
	budgets   policylisters.PodDisruptionBudgetLister
	listers   *rules.Listers
	volumes   *volumeBook

	// Used by the goroutine of Run only.
	snapshot *snapshot.Snapshot
	decider  decider

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
	filters := rules.Filters()
	s := &Scheduler{
		cfg:       cfg,
		recorder:  cfg.Recorder,
		queue:     queue.New(queue.Config{Clock: cfg.Clock, Hints: rules.Hints(filters)}),
		nominator: queue.NewNominator(),
		cache:     snapshot.NewCache(),
		pods:      cfg.Informers.Core().V1().Pods().Lister(),
		budgets:   cfg.Informers.Policy().V1().PodDisruptionBudgets().Lister(),
		volumes:   newVolumeBook(),
		snapshot:  snapshot.New(),
		decider:   decider{filters: filters, scores: rules.Scores(), rand: cfg.Rand},
		slots:     make(chan struct{}, cfg.Binders),
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
	if s.recorder == nil {
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
	s.cfg.Logger.Info("scheduler started", "name", s.cfg.SchedulerName, "nodes", s.cache.NodeCount())
	for {
		item, err := s.queue.Pop(ctx)
		if err != nil {
			return err
		}
		s.attempt(ctx, item)
	}
}

// record makes an event recorder that writes through Client.
func (s *Scheduler) record(ctx context.Context) (stop func(), err error) {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.cfg.Client.EventsV1()})
	s.recorder = b.NewRecorder(scheme.Scheme, s.cfg.SchedulerName)
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("scheduler: record events: %w", err)
	}
	return b.Shutdown, nil
}

// write runs fn in a goroutine; it blocks while Config.Binders of them run.
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
