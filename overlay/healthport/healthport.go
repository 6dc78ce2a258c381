package healthport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/host"
)

// DefaultNodeAddress is where load balancers check the node itself, and DefaultStatusAddress is where programs of the node ask how
// Services are routed. Both are kube-proxy's.
const (
	DefaultNodeAddress   = "0.0.0.0:10256"
	DefaultStatusAddress = "127.0.0.1:10249"
)

// retry is the pause before a port that is in use is tried again.
const retry = 5 * time.Second

// Config configures a Server.
type Config struct {
	NodeName string
	// Informers give Services, EndpointSlices and Nodes. Run starts those it needs, and leaves them running.
	Informers informers.SharedInformerFactory
	// Healthy tells whether this node routes Services. It may be called by several goroutines at once.
	Healthy func() bool
	// NodeAddress serves the health check of the node itself; StatusAddress says how Services are routed. 0.0.0.0 means all
	// addresses of the node, IPv6 too; "" turns the address off.
	NodeAddress, StatusAddress string
	// NetNS is the path of the network namespace to work in; "" is the namespace of the process.
	NetNS  string
	Logger *slog.Logger
}

// Validate reports every fault of the configuration at once, and fills in the defaults.
func (c *Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("healthport: NodeName is missing"))
	}
	if c.Informers == nil {
		errs = append(errs, errors.New("healthport: Informers are missing"))
	}
	if c.Healthy == nil {
		errs = append(errs, errors.New("healthport: Healthy is missing"))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}

// Server answers load balancers.
type Server struct {
	cfg  Config
	ns   host.Namespace
	wake chan struct{}

	mu      sync.Mutex
	dirty   map[types.NamespacedName]struct{}
	watched map[types.NamespacedName]bool // Services whose endpoints matter

	// Only Run's goroutine uses these.
	answers   map[types.NamespacedName]*answer
	ports     map[types.NamespacedName]int32
	open      map[string]*server              // by the address listened on
	by        map[string]types.NamespacedName // the Service of an open address; the zero value stands for the node itself
	nodeCheck *nodeCheck
	failed    map[string]string // the last error logged, by address
}

// New prepares a server; nothing is listened on before Run.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ns, err := host.OpenNamespace(cfg.NetNS)
	if err != nil {
		return nil, err
	}
	// Asking for an informer registers it, so that the factory starts it.
	cfg.Informers.Core().V1().Services().Informer()
	cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	cfg.Informers.Core().V1().Nodes().Informer()
	return &Server{
		cfg: cfg, ns: ns, wake: make(chan struct{}, 1), dirty: map[types.NamespacedName]struct{}{}, watched: map[types.NamespacedName]bool{},
		answers: map[types.NamespacedName]*answer{}, ports: map[types.NamespacedName]int32{},
		open: map[string]*server{}, by: map[string]types.NamespacedName{}, nodeCheck: &nodeCheck{healthy: cfg.Healthy}, failed: map[string]string{},
	}, nil
}

// Run answers until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	defer s.ns.Close()
	remove, synced, err := s.watch()
	defer remove()
	if err != nil {
		return fmt.Errorf("healthport: %w", err)
	}
	s.cfg.Informers.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	defer func() {
		for _, srv := range s.open {
			srv.close()
		}
	}()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-again.C:
		}
		done := false
		if err := fault.Do("overlay/healthport", func() {
			fault.Point("overlay/healthport")
			for key := range s.takeChanged() {
				s.readService(key)
			}
			done = s.apply()
		}); err != nil {
			s.rereadServices()
		}
		again.Stop()
		if !done {
			again.Reset(retry)
		}
	}
}

// rereadServices reads every known Service again, because a panic may have lost a change.
func (s *Server) rereadServices() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.cfg.Informers.Core().V1().Services().Informer().GetStore().List() {
		if svc, ok := o.(*v1.Service); ok {
			s.dirty[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = struct{}{}
		}
	}
}

func (s *Server) note(key types.NamespacedName) {
	s.mu.Lock()
	s.dirty[key] = struct{}{}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Server) takeChanged() map[types.NamespacedName]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := maps.Clone(s.dirty)
	clear(s.dirty)
	return out
}

// readService reads a Service and its endpoints.
func (s *Server) readService(key types.NamespacedName) {
	svc, err := s.cfg.Informers.Core().V1().Services().Lister().Services(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return // a lister has no other errors
	}
	port := portOf(svc)
	s.mu.Lock()
	if delete(s.watched, key); port != 0 {
		s.watched[key] = true // before the endpoints are read, so that later changes of them are noted
	}
	s.mu.Unlock()
	if port == 0 {
		delete(s.ports, key)
		delete(s.answers, key)
		return
	}
	a := s.answers[key]
	if a == nil {
		a = &answer{key: key, healthy: s.cfg.Healthy}
		s.answers[key] = a
	}
	s.ports[key] = port
	of := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: key.Name})
	list, err := s.cfg.Informers.Discovery().V1().EndpointSlices().Lister().EndpointSlices(key.Namespace).List(of)
	if err == nil {
		a.local.Store(int64(countLocal(list, s.cfg.NodeName)))
	}
}

// apply opens and closes ports; ok is false when one could not be opened.
func (s *Server) apply() (ok bool) {
	wanted := map[string]types.NamespacedName{}
	handlers := map[string]http.Handler{}
	for key, port := range s.ports {
		address := net.JoinHostPort("", strconv.Itoa(int(port)))
		wanted[address], handlers[address] = key, s.answers[key]
	}
	for address, handler := range map[string]http.Handler{s.cfg.NodeAddress: s.nodeCheck.handler(), s.cfg.StatusAddress: status()} {
		if address != "" {
			wanted[address], handlers[address] = types.NamespacedName{}, handler
		}
	}
	for address, srv := range s.open {
		if service, still := wanted[address]; !still || service != s.by[address] {
			srv.close()
			delete(s.open, address)
			delete(s.by, address)
		}
	}
	ok = true
	for address, service := range wanted {
		if s.open[address] != nil {
			continue
		}
		srv, err := listen(s.ns, address, handlers[address])
		if err != nil {
			ok = false
			if text := err.Error(); s.failed[address] != text {
				s.failed[address] = text
				s.cfg.Logger.Warn("cannot listen for health checks at this address; they fail until the program that has it ends", "address", address, "service", service, "err", err)
			}
			continue
		}
		delete(s.failed, address)
		s.open[address], s.by[address] = srv, service
	}
	return ok
}

// watch adds handlers to the informers. remove removes them, and may be called after an error too.
func (s *Server) watch() (remove func(), synced []cache.InformerSynced, err error) {
	core := s.cfg.Informers.Core().V1()
	rows := []struct {
		informer cache.SharedIndexInformer
		changed  func(obj any)
	}{
		{core.Services().Informer(), s.serviceChanged},
		{s.cfg.Informers.Discovery().V1().EndpointSlices().Informer(), s.sliceChanged},
		{core.Nodes().Informer(), s.nodeChanged},
	}
	var undo []func()
	remove = func() {
		for _, f := range undo {
			f()
		}
	}
	for _, row := range rows {
		registration, err := row.informer.AddEventHandler(eventhandler.Contain("overlay/healthport", cache.ResourceEventHandlerFuncs{
			AddFunc: row.changed,
			UpdateFunc: func(old, now any) {
				row.changed(old)
				row.changed(now)
			},
			DeleteFunc: func(o any) {
				if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = unknown.Obj
				}
				row.changed(o)
			},
		}))
		if err != nil {
			return remove, nil, err
		}
		undo = append(undo, func() { _ = row.informer.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSynced)
	}
	return remove, synced, nil
}

func (s *Server) serviceChanged(o any) {
	if svc, ok := o.(*v1.Service); ok && svc.Spec.Type == v1.ServiceTypeLoadBalancer {
		s.note(types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name})
	}
}

func (s *Server) sliceChanged(o any) {
	slice, ok := o.(*discovery.EndpointSlice)
	if !ok {
		return
	}
	key := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discovery.LabelServiceName]}
	s.mu.Lock()
	matters := s.watched[key]
	s.mu.Unlock()
	if matters {
		s.note(key)
	}
}

func (s *Server) nodeChanged(o any) {
	if n, ok := o.(*v1.Node); ok && n.Name == s.cfg.NodeName {
		s.nodeCheck.leaves.Store(!eligible(n))
	}
}
