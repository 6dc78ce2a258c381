package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/ingress/plan"
)

// statusRetry is the pause before a failed write of a status is tried again, unless a change comes first. It doubles each
// time, up to statusRetryMost.
const (
	statusRetry     = 2 * time.Second
	statusRetryMost = time.Minute
)

// StatusConfig is what a Status needs.
type StatusConfig struct {
	// Client and Rest write statuses and read the Gateway API's kinds.
	Client kubernetes.Interface
	Rest   *rest.Config
	// Secrets reads any Secret by name.
	Secrets kubernetes.Interface
	// Informers give Ingresses, IngressClasses, Services and Nodes. The caller starts them.
	Informers informers.SharedInformerFactory
	// Events records problems as Events on the objects.
	Events record.EventRecorder
	// HTTPPort and HTTPSPort are the nodes' ports for Ingresses.
	HTTPPort, HTTPSPort uint16
	Logger              *slog.Logger
}

// Validate reports every fault at once.
func (c *StatusConfig) Validate() error {
	var errs []error
	must := func(ok bool, text string) {
		if !ok {
			errs = append(errs, errors.New("ingress: "+text))
		}
	}
	must(c.Client != nil && c.Rest != nil && c.Secrets != nil, "Client, Rest and Secrets must be set")
	must(c.Informers != nil, "Informers are missing")
	must(c.Events != nil, "Events are missing")
	must(c.HTTPPort != 0 && c.HTTPSPort != 0 && c.HTTPPort != c.HTTPSPort, "HTTPPort and HTTPSPort must be two ports")
	return errors.Join(errs...)
}

// Status writes the statuses of Ingresses and of the Gateway API's objects. One runs in a cluster at a time.
type Status struct {
	cfg      StatusConfig
	source   *source
	dirty    chan struct{}
	writer   *rest.RESTClient
	recorded map[plan.Problem]bool // the problems of the last plan; only the engine's goroutine uses it
}

// NewStatus prepares a Status. It registers informers with the factory, so the factory must be started after it.
func NewStatus(cfg StatusConfig) (*Status, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Status{cfg: cfg, dirty: make(chan struct{}, 1), recorded: map[plan.Problem]bool{}}
	var err error
	if s.source, err = newSource(sourceConfig{
		networking: cfg.Informers, services: cfg.Informers, secrets: cfg.Secrets, rest: cfg.Rest, log: cfg.Logger, changed: s.wakeEngine,
	}); err != nil {
		return nil, err
	}
	if s.writer, err = gatewayClient(cfg.Rest, "v1"); err != nil {
		return nil, err
	}
	nodes := cfg.Informers.Core().V1().Nodes().Informer()
	if _, err = nodes.AddEventHandler(eventhandler.Contain("ingress/events", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.wakeEngine() }, DeleteFunc: func(any) { s.wakeEngine() },
		UpdateFunc: func(before, after any) {
			b, ok := before.(*v1.Node)
			if a, is := after.(*v1.Node); ok && is && !sameNode(a, b) {
				s.wakeEngine()
			}
		},
	})); err != nil {
		return nil, err
	}
	_, err = cfg.Informers.Core().V1().Services().Informer().AddEventHandler(eventhandler.Contain("ingress/events", s.source.onService()))
	s.source.synced = append(s.source.synced, nodes.HasSynced)
	return s, err
}

// sameNode reports whether an update changed nothing that the addresses depend on.
func sameNode(a, b *v1.Node) bool {
	one, other := addresses([]*v1.Node{a}), addresses([]*v1.Node{b})
	return a.Labels[Label] == b.Labels[Label] && fmt.Sprint(one) == fmt.Sprint(other)
}

func (s *Status) wakeEngine() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends.
func (s *Status) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	parts.Go(fault.Contained("ingress/source", func() { s.source.run(ctx) }))
	if !cache.WaitForCacheSync(ctx.Done(), append(s.source.synced, s.source.kinds.defined.HasSynced)...) {
		return nil
	}
	again := time.NewTimer(0)
	defer again.Stop()
	for delay := statusRetry; ; {
		select {
		case <-s.dirty:
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(batchDelay):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-s.dirty:
		default:
		}
		done := false
		_ = fault.Do("ingress/status", func() {
			fault.Point("ingress/status")
			done = s.step(ctx)
		})
		if done {
			delay = statusRetry
		} else if ctx.Err() == nil {
			again.Reset(delay)
			delay = min(2*delay, statusRetryMost)
		}
	}
}

// step writes the statuses that differ; false if a write failed and has to be tried again.
func (s *Status) step(ctx context.Context) bool {
	if !s.source.ready() {
		return false
	}
	objects, err := s.source.objects()
	if err != nil {
		s.cfg.Logger.Error("ingress: cannot read objects; statuses stay as they are", "err", err)
		return false
	}
	p := plan.Build(plan.Config{HTTPPort: s.cfg.HTTPPort, HTTPSPort: s.cfg.HTTPSPort}, objects)
	s.source.setNamed(p.Services)
	if !s.source.secrets.follow(ctx, p.Secrets) {
		return true // a change wakes the loop when the first lists are complete
	}
	nodes, err := s.cfg.Informers.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return false
	}
	at := addresses(nodes)
	s.recordProblems(p.Problems)
	return s.written(errors.Join(s.writeIngresses(ctx, p, at), s.writeGateways(ctx, p, objects, at)))
}

func (s *Status) written(err error) bool {
	if err != nil && !apierrors.IsConflict(err) {
		s.cfg.Logger.Warn("ingress: cannot write a status; it tries again", "err", err)
	}
	return err == nil
}

// recordProblems records an Event for each new problem.
func (s *Status) recordProblems(problems []plan.Problem) {
	now := map[plan.Problem]bool{}
	for _, p := range problems {
		if now[p] = true; !s.recorded[p] {
			s.cfg.Events.Event(&p.Object, v1.EventTypeWarning, p.Reason, p.Message)
		}
	}
	s.recorded = now
}

// tolerable returns nil for errors about objects that were deleted or changed meanwhile, because that change wakes the
// loop; other errors it returns.
func tolerable(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (s *Status) writeIngresses(ctx context.Context, p *plan.Plan, at []string) error {
	want := ingressStatus(at)
	var errs []error
	for _, in := range p.Ingresses {
		if sameIngressStatus(in.Status.LoadBalancer.Ingress, want) {
			continue
		}
		in = in.DeepCopy()
		in.Status.LoadBalancer.Ingress = want
		_, err := s.cfg.Client.NetworkingV1().Ingresses(in.Namespace).UpdateStatus(ctx, in, metav1.UpdateOptions{})
		errs = append(errs, tolerable(err))
	}
	return errors.Join(errs...)
}
