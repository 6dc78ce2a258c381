package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/node/admission"
	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/counters"
	"github.com/balsahq/balsa/node/cpumanager"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/csi"
	"github.com/balsahq/balsa/node/deviceplugin"
	"github.com/balsahq/balsa/node/dra"
	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/images"
	"github.com/balsahq/balsa/node/pluginwatcher"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podworker"
	"github.com/balsahq/balsa/node/probe"
	"github.com/balsahq/balsa/node/staticpod"
	"github.com/balsahq/balsa/node/stats"
	"github.com/balsahq/balsa/node/userns"
	"github.com/balsahq/balsa/node/volume"
)

// volumes is what the agent needs of the volume manager besides its workers.
type volumes interface {
	podworker.Volumes
	Run(ctx context.Context) error
	CleanUpOrphans(ctx context.Context, keep func(types.UID) bool) error
	ClockSet()
	UseTokenKey(id string)
	TokenKey() string
	TokenKeyChanged() <-chan struct{}
	Stats(ctx context.Context, pod *v1.Pod, name string) (*statsv1.VolumeStats, error)
}

// probes is what the agent needs of the probe manager besides its workers.
type probes interface {
	podworker.Probes
	prometheus.Collector
	Close()
}

// cgroups is what the agent needs of the machine's control groups besides its workers.
type cgroups interface {
	podworker.Cgroups
	Init(all cgroup.Limits) error
	SetBurstable(shares uint64) error
	Pods() []types.UID
	AllPods() (cgroup.Memory, error)
	Processes(uid types.UID, qos v1.PodQOSClass) (int64, error)
}

// Agent runs the pods of one node.
type Agent struct {
	cfg       Config
	log       *slog.Logger
	hostIPs   []string
	memory    int64 // capacity in bytes
	translate *criconfig.Config
	sysctls   *admission.Sysctls
	users     *userns.Ranges
	count     *counters.Counters
	stats     *stats.Provider   // set once the runtime answers
	collector *images.Collector // the same

	// Set by Run before any worker starts, then read-only.
	runtime     criapi.RuntimeService
	images      criapi.ImageManagerService
	host        *podworker.Host
	runtimeName string
	runtimeVer  string

	volumes   volumes
	csi       *csi.Node
	probes    probes
	cgroups   cgroups
	devices   *deviceplugin.Manager
	cpus      *cpumanager.Manager
	allocator *allocator
	claims    *dra.Manager
	recorder  record.EventRecorder
	events    record.EventBroadcaster
	services  corelisters.ServiceLister
	informer  cache.SharedIndexInformer
	pods      corelisters.PodLister

	watchDir          func(dir string) (<-chan fsnotify.Event, func()) // replaced in tests
	followPlugins     func(context.Context) error                      // registers drivers by inotify; replaced in tests
	followDevices     func(context.Context) error                      // serves a socket; replaced in tests
	servePodResources func(context.Context) error                      // serves a socket; replaced in tests
	cpusetsStale      chan struct{}                                    // wakes keepCPUSets
	imageFs           string                                           // a path on the file system of images, once the runtime has said it; only evictions' goroutine uses it
	// observe measures what the machine has left; replaced in tests. One goroutine calls it.
	observe      func(ctx context.Context) eviction.Observations
	memoryEvents func(ctx context.Context, tell func()) // tells when memory gets short; replaced in tests
	short        atomic.Pointer[[]v1.NodeConditionType] // conditions of the node that are true
	shuttingDown atomic.Bool                            // the machine is about to go down
	nudgeNode    chan struct{}                          // wakes keepNode: the Node's status may have changed
	// imagesStale says that the images have changed since they were listed.
	imagesStale atomic.Bool
	// formerVolumes says that volumes of pods that are no more could not be removed.
	formerVolumes atomic.Bool
	formerClaims  atomic.Bool   // the same of devices
	mirrors       chan struct{} // a mirror pod has gone
	resizeNudge   chan struct{} // a pod asks for other resources, or there may be room for one that waits

	// Only keepNode's goroutine touches these.
	answered    time.Time // when the runtime has last said how it is
	imagesKnown []*runtimeapi.Image
	listed      time.Time

	connected chan struct{} // closed once the runtime answers

	mu          sync.Mutex
	workers     map[types.UID]*podworker.Worker
	adopted     map[types.UID]*podloop.Observed // found in the runtime at start
	orphanNames map[types.UID][2]string         // namespace and name of the adopted
	waiting     waiters
	handlers    map[string]*runtimeapi.RuntimeHandlerFeatures
	// strictGroups says that the runtime knows supplementalGroupsPolicy Strict.
	strictGroups bool
	node         *v1.Node
	wg           sync.WaitGroup // workers
}

// New returns an Agent for cfg. It starts nothing and changes nothing on the machine.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, log: cfg.Logger, hostIPs: cfg.nodeIPs(), memory: memoryCapacity(),
		workers: map[types.UID]*podworker.Worker{}, adopted: map[types.UID]*podloop.Observed{}, waiting: waiters{byID: map[string]waiter{}},
		nudgeNode: make(chan struct{}, 1), cpusetsStale: make(chan struct{}, 1), mirrors: make(chan struct{}, 1), resizeNudge: make(chan struct{}, 1), connected: make(chan struct{}),
		services: cfg.Informers.Core().V1().Services().Lister(),
		count:    counters.New(),
		translate: &criconfig.Config{
			RootDir: cfg.RootDir, LogDir: cfg.LogDir, ResolvConf: cfg.ResolvConf, ClusterDNS: cfg.ClusterDNS, ClusterDomain: cfg.ClusterDomain,
			SeccompDefault: cfg.SeccompDefault, SandboxConfinesItself: cfg.SandboxConfinesItself,
		},
		users: userns.New(filepath.Join(cfg.RootDir, "pods"), cfg.MaxPods, userns.HostSpan),
	}
	cfg.Informers.Core().V1().Services().Informer()
	cfg.Informers.Core().V1().Nodes().Informer()
	a.node, a.watchDir = a.initialNode(), staticpod.Watch
	a.observe = a.left
	var err error
	if a.sysctls, err = allowedSysctls(cfg.AllowedUnsafeSysctls); err != nil {
		return nil, err
	}
	groups, err := cgroup.New(cgroup.Config{Root: cfg.CgroupRoot, Parent: cfg.CgroupParent})
	if err != nil {
		return nil, err
	}
	a.cgroups = measuredCgroups{groups, a.count}
	a.memoryEvents = func(ctx context.Context, tell func()) { a.watchMemory(ctx, groups, tell) }
	if err := a.newParts(); err != nil {
		return nil, err
	}
	own := informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", cfg.NodeName).String()
	}))
	a.informer, a.pods = own.Core().V1().Pods().Informer(), own.Core().V1().Pods().Lister()
	a.showMetrics()
	return a, nil
}

// newParts makes the managers of volumes and probes, and the recorder of events.
func (a *Agent) newParts() error {
	var err error
	if a.csi, err = csi.New(csi.Config{RootDir: a.cfg.RootDir, NodeName: a.cfg.NodeName, Client: a.cfg.Client, InUse: a.reportsInUse, Logger: a.log}); err != nil {
		return err
	}
	if a.claims, err = dra.New(dra.Config{
		RootDir: a.cfg.RootDir, NodeName: a.cfg.NodeName, Client: a.cfg.Client, HealthChanged: a.wakePods, Logger: a.log,
	}); err != nil {
		return err
	}
	if err := a.newAllocator(); err != nil {
		return err
	}
	if a.followPlugins == nil {
		a.followPlugins = a.pluginWatcher().Run
	}
	vols, err := volume.New(volume.Config{
		CSI:     a.csi,
		RootDir: a.cfg.RootDir, NodeName: a.cfg.NodeName, Client: a.cfg.Client,
		NodeAllocatable: func() v1.ResourceList { return a.Node().Status.Allocatable },
		NodeLabels:      func() map[string]string { return a.Node().Labels },
		Services:        func() ([]*v1.Service, error) { return a.allServices() },
		SourceFound:     a.volumeSourceFound,
		Logger:          a.log,
	})
	if err != nil {
		return err
	}
	a.volumes = vols
	a.events = record.NewBroadcaster()
	a.recorder = a.events.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: a.cfg.NodeName})
	a.probes = probe.New(probe.Config{Exec: a.execProbe, Results: a.probed, Events: a.recorder, Logger: a.log})
	return nil
}

// pluginWatcher registers the drivers of storage and devices.
func (a *Agent) pluginWatcher() *pluginwatcher.Watcher {
	return &pluginwatcher.Watcher{
		Dir:      filepath.Join(a.cfg.RootDir, "plugins_registry"),
		Handlers: map[string]pluginwatcher.Handler{registerapi.CSIPlugin: a.csi, registerapi.DRAPlugin: a.claims, registerapi.DevicePlugin: a.devices},
		Ready:    a.csi.AwaitNode, Dial: csi.Dial, Logger: a.log,
	}
}

// Run registers the Node and runs its pods until ctx ends. Containers outlive it. An error means that the agent could not
// begin.
func (a *Agent) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	a.events.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: a.cfg.Client.CoreV1().Events("")})
	defer a.events.Shutdown()
	for _, dir := range []string{filepath.Join(a.cfg.RootDir, "pods"), filepath.Join(a.cfg.LogDir, "pods"), filepath.Join(a.cfg.LogDir, "containers")} {
		if err := os.MkdirAll(dir, criconfig.DirMode); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	nodes := a.cfg.Informers.Core().V1().Nodes().Informer()
	reg, err := nodes.AddEventHandler(eventhandler.Contain("node/events", cache.ResourceEventHandlerFuncs{AddFunc: a.nodeSeen, UpdateFunc: func(_, o any) { a.nodeSeen(o) }}))
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	defer func() { _ = nodes.RemoveEventHandler(reg) }()
	a.cfg.Informers.Start(ctx.Done())
	g.Go(fault.ContainedErr("node", func() error { a.informer.RunWithContext(ctx); return nil }))
	keep := func(unit string, work func(context.Context)) {
		g.Go(func() error { fault.KeepDo(ctx, unit, work); return nil })
	}
	keep("node/lease", a.keepLease)
	keep("node/object", a.keepNode)
	g.Go(func() error { return fault.Keep(ctx, "node/volumes", a.volumes.Run) })
	g.Go(func() error { return fault.Keep(ctx, "node/csi", a.csi.Run) })
	g.Go(func() error { return fault.Keep(ctx, "node/dra", a.claims.Run) })
	g.Go(func() error { return fault.Keep(ctx, "node/plug-ins", a.followPlugins) })
	g.Go(func() error { return fault.Keep(ctx, "node/device plug-ins", a.followDevices) })
	g.Go(func() error { return fault.Keep(ctx, "node/pod resources", a.servePodResources) })
	g.Go(func() error { return fault.Contain("node/pods", func() error { return a.runPods(ctx, g) }) })
	err = g.Wait()
	a.wg.Wait()
	a.probes.Close()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// runPods waits for the runtime, adopts the pods that run in it, and then begins to follow the pods in the API.
func (a *Agent) runPods(ctx context.Context, g *errgroup.Group) error {
	if err := a.connect(ctx); err != nil {
		return err
	}
	a.host = a.newHost()
	if err := a.cgroups.Init(a.allPodsLimits()); err != nil {
		return err
	}
	g.Go(func() error { fault.KeepDo(ctx, cri.Unit, a.runtimeEvents().Run); return nil })
	adopt := func() error { return a.adopt(ctx) }
	for delay := notReadyPoll; fault.Contain("node/adoption", adopt) != nil; delay = longer(delay) {
		if !pause(ctx, delay) {
			return nil
		}
	}
	a.stats = stats.New(stats.Config{
		NodeName: a.cfg.NodeName, RootDir: a.cfg.RootDir, CgroupRoot: a.cfg.CgroupRoot, LogRoot: filepath.Join(a.cfg.LogDir, "pods"),
		Runtime: a.runtime, Images: a.images, Pods: a.Pods, Volume: a.volumes.Stats,
	})
	a.collector = &images.Collector{
		Images: a.images, Runtime: a.runtime, Pods: a.Pods, HighPercent: a.cfg.ImageGCHigh, LowPercent: a.cfg.ImageGCLow,
		MinAge: a.cfg.ImageMinAge, MaxAge: a.cfg.ImageMaxAge, Changed: a.imagesChanged, Logger: a.log,
	}
	close(a.connected)
	a.imagesChanged()
	g.Go(func() error { fault.KeepDo(ctx, "node/static pods", a.static); return nil }) // they need no API
	// A container's environment names the Services, so they are needed before the first start.
	if !synced(ctx, a.cfg.Informers.Core().V1().Services().Informer().HasSynced) {
		return nil
	}
	reg, err := a.informer.AddEventHandler(eventhandler.Contain("node/events", cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.podSeen(ctx, o) },
		UpdateFunc: func(_, o any) { a.podSeen(ctx, o) },
		DeleteFunc: a.podGone,
	}))
	if err != nil {
		return err
	}
	if !synced(ctx, reg.HasSynced) {
		return nil
	}
	_ = fault.Do("node/adoption", func() { a.endOrphans(ctx) }) // after a panic the orphans run on until the next start of the agent
	a.relist(ctx)                                               // containers may have ended before their worker was there
	g.Go(func() error { fault.KeepDo(ctx, "node/resizes", a.resizes); return nil })
	g.Go(func() error { fault.KeepDo(ctx, "node/housekeeping", a.housekeeping); return nil })
	g.Go(func() error { fault.KeepDo(ctx, "node/cpusets", a.keepCPUSets); return nil })
	g.Go(func() error { fault.KeepDo(ctx, "node/evictions", a.evictions); return nil })
	g.Go(func() error { fault.KeepDo(ctx, "node/shutdown", a.watchShutdown); return nil })
	return nil
}

// newHost returns what the workers share; called once the runtime answers.
func (a *Agent) newHost() *podworker.Host {
	return &podworker.Host{
		Client: a.cfg.Client, Pods: a.pods, Runtime: a.runtime, RuntimeName: a.runtimeName, Features: a.features, Handlers: a.handlerNames,
		Images: &images.Puller{Service: a.images, Client: a.cfg.Client, Events: a.recorder, Changed: a.imagesChanged},
		Config: a.translate, Volumes: a.volumes, Probes: a.probes, Cgroups: a.cgroups, Users: a.users, Allocator: a.allocator, Claims: a.claims, Counters: a.count, Events: a.recorder,
		NetworkReady: a.cfg.NetworkReady, ResizeAsked: a.resizeAsked, Published: a.published, HostIPs: a.hostIPs, MemoryCapacity: a.memory,
		PodPIDs: a.cfg.PodPIDs, Logger: a.log,
	}
}

// synced waits until done reports true. It returns false when ctx ended first.
func synced(ctx context.Context, done func() bool) bool {
	for !done() {
		if !pause(ctx, syncPoll) {
			return false
		}
	}
	return true
}

// pause waits for d. It returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// nudge makes keepNode compare the Node's status again.
func (a *Agent) nudge() {
	select {
	case a.nudgeNode <- struct{}{}:
	default:
	}
}

// imagesChanged makes keepNode list the images again.
func (a *Agent) imagesChanged() {
	a.imagesStale.Store(true)
	a.nudge()
}

// Node returns the newest Node object that the agent knows; read-only.
func (a *Agent) Node() *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}
