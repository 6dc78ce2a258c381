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
	// gather is how long the engine waits for more changes after one.
	gather = 20 * time.Millisecond
	// patience is how long a plan waits for Secrets that are being read, so that no client is shown another certificate.
	patience = 3 * time.Second
	// portRetry and portRetryMost bound the pause before a port of another program is tried again; no event says that it is free.
	portRetry, portRetryMost = 2 * time.Second, time.Minute
	// mostTold is of how many objects it is said that their port is another program's.
	mostTold = 16
)

// Config is what a Node needs.
type Config struct {
	// NodeName is the Node this is.
	NodeName string
	// Client and Rest act as the node: they read Ingresses, their classes, the Gateway API's kinds, the Secrets these name,
	// and write Events.
	Client kubernetes.Interface
	Rest   *rest.Config
	// Informers give Services, EndpointSlices and Nodes. Run starts those it asked for, and leaves them running.
	Informers informers.SharedInformerFactory
	// HTTPPort and HTTPSPort are those of Ingresses, and what ports 80 and 443 of Gateways mean.
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
	replan  bool                          // something changed that plans are made from
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
	n.poke()
}

func (n *Node) poke() {
	select {
	case n.dirty <- struct{}{}:
	default:
	}
}

// take returns what changed since it was asked last.
func (n *Node) take() (replan bool, touched map[types.NamespacedName]bool) {
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
	e := &engine{node: n, waits: portRetry, said: map[uint16]string{}}
	defer e.stop()
	return e.run(ctx)
}

// serves reports whether this node does.
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
		n.cfg.Logger.Error("ingress: cannot read a Service's endpoints; it counts as without any", "service", key, "err", err)
		return nil
	}
	for _, o := range list {
		if s, ok := o.(*discovery.EndpointSlice); ok {
			out = append(out, s)
		}
	}
	return out
}

// engine is the goroutine that brings plans into force. What it has is its own.
type engine struct {
	node   *Node
	proxy  *proxy.Proxy // nil until there is something to serve
	plan   *plan.Plan
	since  time.Time // when a plan began to wait for Secrets
	waits  time.Duration
	said   map[uint16]string // what was last said of ports that cannot be opened
	undo   []func()
	events record.EventBroadcaster
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
		select { // more changes come together
		case <-time.After(gather):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-n.dirty:
		default:
		}
		replan, touched := n.take()
		var next time.Duration
		if fault.Do("ingress/node", func() {
			fault.Point("ingress/node")
			if !replan {
				e.endpoints(touched)
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

// step makes everything as it should be and says when to try again; 0: when something changes.
func (e *engine) step(ctx context.Context) time.Duration {
	n := e.node
	if !n.source.ready() {
		return 200 * time.Millisecond // lists are under way; their arrival is told, so this is a second chance
	}
	objects, err := n.source.objects()
	if err != nil {
		n.cfg.Logger.Error("ingress: cannot read objects; the former plan stays, and it is tried again", "err", err)
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
		if left := patience - time.Since(e.since); left > 0 {
			return left
		}
	} else {
		e.since = time.Time{}
	}
	if err := e.begin(ctx); err != nil {
		n.cfg.Logger.Error("ingress: cannot watch endpoints; the former plan stays, and it is tried again", "err", err)
		return portRetry
	}
	e.plan = next
	n.source.name(next.Services)
	e.endpoints(nil)
	return e.report(next, e.proxy.Apply(next))
}

// begin starts what is needed only where something is served.
func (e *engine) begin(ctx context.Context) error {
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
		return // a plan that comes to name it reads it then
	}
	n.mu.Lock()
	n.touched[key] = true
	n.mu.Unlock()
	n.poke()
}

// endpoints tells the proxy where the backends of the plan are; only those of some Services, unless of is nil.
func (e *engine) endpoints(of map[types.NamespacedName]bool) {
	if e.plan == nil {
		return
	}
	for b := range e.plan.Backends {
		if key := (types.NamespacedName{Namespace: b.Namespace, Name: b.Service}); of == nil || of[key] {
			e.proxy.SetEndpoints(b, endpointsOf(b, e.node.slicesOf(key)))
		}
	}
}

// report says once which ports could not be opened, to the log and to the objects they are for.
func (e *engine) report(p *plan.Plan, faults map[uint16]error) time.Duration {
	for number := range e.said {
		if faults[number] == nil {
			delete(e.said, number)
		}
	}
	if len(faults) == 0 {
		e.waits = portRetry
		return 0
	}
	for number, err := range faults {
		if e.said[number] == err.Error() {
			continue
		}
		e.said[number] = err.Error()
		e.node.cfg.Logger.Error("ingress cannot listen, perhaps because another program has the port; it is tried again; --ingress-http-port and --ingress-https-port choose others",
			"port", number, "err", err)
		owners := p.Ports[number].Owners
		for _, owner := range owners[:min(len(owners), mostTold)] {
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
