package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/ingress/plan"
	"github.com/balsahq/balsa/overlay/ingress/proxy"
)

const (
	// batchDelay is how long the engine waits for more changes after one.
	batchDelay = 20 * time.Millisecond
	// secretTimeout is how long a new plan waits for Secrets that are being read. Until then the old plan serves, so that no
	// client sees the self-signed certificate.
	secretTimeout = 3 * time.Second
	// portRetry and portRetryMost bound the pause before a port that another program has is tried again; no event says that
	// it is free.
	portRetry, portRetryMost = 2 * time.Second, time.Minute
	// mostPortEvents bounds the Events about one port that cannot be opened.
	mostPortEvents = 16
)

// Config configures a Node.
type Config struct {
	// NodeName is the name of this machine's Node.
	NodeName string
	// Client and Rest act as the node: they read Ingresses, their classes, the Gateway API's kinds, the Secrets these name,
	// and write Events.
	Client kubernetes.Interface
	Rest   *rest.Config
	// Informers give Services, EndpointSlices and Nodes. Run starts those it asked for, and leaves them running.
	Informers informers.SharedInformerFactory
	// HTTPPort and HTTPSPort are the ports of Ingresses, and of Gateways' listeners with port 80 and 443.
	HTTPPort, HTTPSPort uint16
	// MaxConnections bounds the connections of clients; 0 is proxy.DefaultMaxConnections.
	MaxConnections int
	// Listen opens a port; nil listens on all addresses.
	Listen func(port uint16) (net.Listener, error)
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var errs []error
	must := func(ok bool, text string) {
		if !ok {
			errs = append(errs, errors.New("ingress: "+text))
		}
	}
	must(c.NodeName != "", "NodeName is missing")
	must(c.Client != nil && c.Rest != nil, "Client and Rest must be set")
	must(c.Informers != nil, "Informers are missing")
	must(c.HTTPPort != 0 && c.HTTPSPort != 0 && c.HTTPPort != c.HTTPSPort, "HTTPPort and HTTPSPort must be two ports")
	must(c.MaxConnections >= 0, "MaxConnections must not be negative")
	return errors.Join(errs...)
}

// Node serves Ingresses and Gateways on one node.
type Node struct {
	cfg    Config
	own    informers.SharedInformerFactory
	source *source
	dirty  chan struct{}

	mu      sync.Mutex
	replan  bool                          // an object changed from which plans are made
	touched map[types.NamespacedName]bool // Services whose endpoints changed
}

// NewNode prepares a node; nothing listens before Run.
func NewNode(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	n := &Node{cfg: cfg, own: informers.NewSharedInformerFactory(cfg.Client, 0), dirty: make(chan struct{}, 1), touched: map[types.NamespacedName]bool{}}
	var err error
	n.source, err = newSource(sourceConfig{
		networking: n.own, services: cfg.Informers, secrets: cfg.Client, rest: cfg.Rest, log: cfg.Logger, changed: n.changed,
	})
	if err != nil {
		return nil, err
	}
	cfg.Informers.Core().V1().Nodes().Informer()
	cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	return n, nil
}

// changed asks for a new plan.
func (n *Node) changed() {
	n.mu.Lock()
	n.replan = true
	n.mu.Unlock()
	n.wakeEngine()
}

func (n *Node) wakeEngine() {
	select {
	case n.dirty <- struct{}{}:
	default:
	}
}

// takeChanges returns the changes since the last call.
func (n *Node) takeChanges() (replan bool, touched map[types.NamespacedName]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	replan, touched = n.replan, n.touched
	n.replan, n.touched = false, map[types.NamespacedName]bool{}
	return replan, touched
}

// Run serves until ctx ends; then requests under way have a moment to end.
func (n *Node) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer n.own.Shutdown()
	defer parts.Wait()
	defer cancel()
	n.own.StartWithContext(ctx)
	n.cfg.Informers.Start(ctx.Done())
	parts.Go(fault.Contained("ingress/source", func() { n.source.run(ctx) }))
	nodes := n.cfg.Informers.Core().V1().Nodes().Informer()
	registration, err := nodes.AddEventHandler(eventhandler.Contain("ingress/events", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { n.changed() }, DeleteFunc: func(any) { n.changed() },
		UpdateFunc: func(before, after any) {
			b, ok := before.(*v1.Node)
			if a, is := after.(*v1.Node); ok && is && a.Labels[Label] != b.Labels[Label] {
				n.changed()
			}
		},
	}))
	if err != nil {
		return fmt.Errorf("ingress: %w", err)
	}
	defer func() { _ = nodes.RemoveEventHandler(registration) }()
	if !cache.WaitForCacheSync(ctx.Done(), append(n.source.synced, registration.HasSynced, n.source.kinds.defined.HasSynced)...) {
		return nil
	}
	e := &engine{node: n, waits: portRetry, reported: map[uint16]string{}}
	defer e.stop()
	return e.run(ctx)
}

// serves reports whether this node is a serving node.
func (n *Node) serves() bool {
	nodes, err := n.cfg.Informers.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return false
	}
	for _, one := range serving(nodes) {
		if one.Name == n.cfg.NodeName {
			return true
		}
	}
	return false
}

// byService is an index of EndpointSlices.
const byService = "balsa.dev/service"

func serviceOf(o any) ([]string, error) {
	s, ok := o.(*discovery.EndpointSlice)
	if !ok {
		return nil, nil
	}
	return []string{s.Namespace + "/" + s.Labels[discovery.LabelServiceName]}, nil
}

// slicesOf returns the slices of a Service.
func (n *Node) slicesOf(key types.NamespacedName) (out []*discovery.EndpointSlice) {
	list, err := n.cfg.Informers.Discovery().V1().EndpointSlices().Informer().GetIndexer().ByIndex(byService, key.String())
	if err != nil {
		n.cfg.Logger.Error("ingress: cannot read a Service's endpoints; requests to it get status 503", "service", key, "err", err)
		return nil
	}
	for _, o := range list {
		if s, ok := o.(*discovery.EndpointSlice); ok {
			out = append(out, s)
		}
	}
	return out
}

// engine makes and applies plans. Only its goroutine uses its fields.
type engine struct {
	node     *Node
	proxy    *proxy.Proxy // nil until there is something to serve
	plan     *plan.Plan
	since    time.Time // when the plan began to wait for Secrets
	waits    time.Duration
	reported map[uint16]string // the error last reported for each port that cannot be opened
	undo     []func()
	events   record.EventBroadcaster
}

func (e *engine) run(ctx context.Context) error {
	n := e.node
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-n.dirty:
		case <-again.C:
			n.changed()
		case <-ctx.Done():
			return nil
		}
		select { // wait for more changes, which one plan takes in
		case <-time.After(batchDelay):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-n.dirty:
		default:
		}
		replan, touched := n.takeChanges()
		var next time.Duration
		if fault.Do("ingress/node", func() {
			fault.Point("ingress/node")
			if !replan {
				e.setEndpoints(touched)
			} else {
				next = e.step(ctx)
			}
		}) != nil {
			next = portRetry
		}
		if next > 0 {
			again.Reset(next)
		}
	}
}

// step makes a plan, applies it, and returns when to try again; 0: at the next change.
func (e *engine) step(ctx context.Context) time.Duration {
	n := e.node
	if !n.source.ready() {
		return 200 * time.Millisecond // a change wakes the engine when the first lists are complete; this timer is a safety net
	}
	objects, err := n.source.objects()
	if err != nil {
		n.cfg.Logger.Error("ingress: cannot read objects; the former plan stays until a later attempt succeeds", "err", err)
		return portRetry
	}
	next := &plan.Plan{}
	if n.serves() {
		next = plan.Build(plan.Config{HTTPPort: n.cfg.HTTPPort, HTTPSPort: n.cfg.HTTPSPort}, objects)
	}
	if e.proxy == nil && len(next.Ports) == 0 {
		return 0
	}
	if !n.source.secrets.follow(ctx, next.Secrets) {
		if e.since.IsZero() {
			e.since = time.Now()
		}
		if left := secretTimeout - time.Since(e.since); left > 0 {
			return left
		}
	} else {
		e.since = time.Time{}
	}
	if err := e.startProxy(ctx); err != nil {
		n.cfg.Logger.Error("ingress: cannot watch endpoints; the former plan stays until a later attempt succeeds", "err", err)
		return portRetry
	}
	e.plan = next
	n.source.setNamed(next.Services)
	e.setEndpoints(nil)
	return e.reportPorts(next, e.proxy.Apply(next))
}

// startProxy starts the proxy and the watches that only a node with an Ingress or a Gateway needs.
func (e *engine) startProxy(ctx context.Context) error {
	n := e.node
	if e.proxy != nil {
		return nil
	}
	services, slices := n.cfg.Informers.Core().V1().Services().Informer(), n.cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	if _, there := slices.GetIndexer().GetIndexers()[byService]; !there {
		if err := slices.AddIndexers(cache.Indexers{byService: serviceOf}); err != nil {
			return err
		}
	}
	follow := func(i cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
		registration, err := i.AddEventHandler(eventhandler.Contain("ingress/events", h))
		if err == nil {
			e.undo = append(e.undo, func() { _ = i.RemoveEventHandler(registration) })
			if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
				return ctx.Err()
			}
		}
		return err
	}
	if err := errors.Join(follow(services, n.source.onService()), follow(slices, onSlice(n.sliceChanged))); err != nil {
		return err
	}
	e.proxy = proxy.New(proxy.Config{
		Listen: n.cfg.Listen, HTTPSPort: n.cfg.HTTPSPort, MaxConnections: n.cfg.MaxConnections, Drain: proxy.DefaultDrain, Logger: n.cfg.Logger,
	})
	return nil
}

func onSlice(fn func(*discovery.EndpointSlice)) cache.ResourceEventHandler {
	of := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if s, ok := o.(*discovery.EndpointSlice); ok {
			fn(s)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: of, UpdateFunc: func(_, o any) { of(o) }, DeleteFunc: of}
}

func (n *Node) sliceChanged(s *discovery.EndpointSlice) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discovery.LabelServiceName]}
	if named := n.source.named.Load(); named == nil || !(*named)[key] {
		return // no plan names the Service; a later plan that does reads its slices
	}
	n.mu.Lock()
	n.touched[key] = true
	n.mu.Unlock()
	n.wakeEngine()
}

// setEndpoints gives the proxy the endpoints of the plan's backends: of all, or if of is not nil, of those Services.
func (e *engine) setEndpoints(of map[types.NamespacedName]bool) {
	if e.plan == nil {
		return
	}
	for b := range e.plan.Backends {
		if key := (types.NamespacedName{Namespace: b.Namespace, Name: b.Service}); of == nil || of[key] {
			e.proxy.SetEndpoints(b, endpointsOf(b, e.node.slicesOf(key)))
		}
	}
}

// reportPorts writes each port that could not be opened once to the log, and as an Event on the objects that need it.
func (e *engine) reportPorts(p *plan.Plan, faults map[uint16]error) time.Duration {
	for number := range e.reported {
		if faults[number] == nil {
			delete(e.reported, number)
		}
	}
	if len(faults) == 0 {
		e.waits = portRetry
		return 0
	}
	for number, err := range faults {
		if e.reported[number] == err.Error() {
			continue
		}
		e.reported[number] = err.Error()
		e.node.cfg.Logger.Error("ingress cannot listen, perhaps because another program has the port; it tries again; --ingress-http-port and --ingress-https-port choose other ports",
			"port", number, "err", err)
		owners := p.Ports[number].Owners
		for _, owner := range owners[:min(len(owners), mostPortEvents)] {
			e.recorder().Eventf(&owner, v1.EventTypeWarning, "PortUnavailable", "node %s cannot listen on port %d: %v", e.node.cfg.NodeName, number, err)
		}
	}
	wait := e.waits
	e.waits = min(2*e.waits, portRetryMost)
	return wait
}

func (e *engine) recorder() record.EventRecorder {
	if e.events == nil {
		e.events = record.NewBroadcaster()
		e.events.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: e.node.cfg.Client.CoreV1().Events("")})
	}
	return e.events.NewRecorder(scheme.Scheme, v1.EventSource{Component: "balsa-ingress", Host: e.node.cfg.NodeName})
}

func (e *engine) stop() {
	for _, f := range e.undo {
		f()
	}
	if e.events != nil {
		e.events.Shutdown()
	}
	if e.proxy != nil {
		e.proxy.Close()
	}
}
