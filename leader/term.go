package leader

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/workqueue"
)

// userManager may list and watch everything; the shared informers and the events act as it.
const userManager = "system:kube-controller-manager"

// scope is the part of a term that all its controllers share.
type scope struct {
	cfg       Config
	term      Term
	reader    kubernetes.Interface
	informers informers.SharedInformerFactory
	events    record.EventBroadcaster
	log       *slog.Logger
}

// lead runs all controllers of one term. When ctx ends, the leadership is lost or a controller fails to start, it stops all
// of them and returns after their end.
func lead(ctx context.Context, cfg Config, term Term) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(fault.Contained("leader", func() {
		select {
		case <-term.Lost:
			cancel()
		case <-ctx.Done():
		}
	}))
	var s *scope
	err := fault.Contain("leader", func() (err error) {
		fault.Point("leader/term")
		if s, err = newScope(ctx, cfg, term); err != nil {
			return err
		}
		return s.run(ctx, &all)
	})
	cancel()
	all.Wait()
	if s != nil {
		s.informers.Shutdown() // waits for the informers, whose context has ended
		s.events.Shutdown()
	}
	return err
}

// run starts all controllers and returns when ctx ends or one of them fails; all counts the started goroutines.
func (s *scope) run(ctx context.Context, all *sync.WaitGroup) error {
	runners, err := s.build(ctx, controllers)
	if err != nil {
		return err
	}
	s.informers.StartWithContext(ctx)
	failed := make(chan error, len(runners))
	for _, r := range runners {
		all.Go(func() {
			if r.later {
				s.informers.WaitForCacheSync(ctx.Done())
			}
			// A runner runs once. If it panics outside its units of work the term ends, and the next term creates all runners
			// again.
			if err := fault.Contain("controller", func() error { return r.runner.Run(ctx) }); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", r.name, err)
			}
		})
	}
	all.Go(func() { fault.KeepDo(ctx, "leader", s.showHolder) })
	if s.cfg.OnTermStarted != nil {
		s.cfg.OnTermStarted(s.term.Epoch)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func newScope(ctx context.Context, cfg Config, term Term) (*scope, error) {
	client, err := newClient(ctx, term, userManager)
	if err != nil {
		return nil, err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &scope{
		cfg: cfg, term: term, reader: client, events: events, log: cfg.Logger,
		informers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(workqueue.Strip)),
	}, nil
}

func newClient(ctx context.Context, term Term, user string) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(configFor(ctx, term, user))
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", user, err)
	}
	return client, nil
}

// configFor returns a client configuration without rate limiting, because the server has flow control and the client is in
// the same process.
func configFor(ctx context.Context, term Term, user string) *rest.Config {
	c := rest.CopyConfig(term.Config(user))
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return bound{ctx: ctx, next: next} })
	c.QPS, c.RateLimiter = -1, nil
	c.WarningHandler = rest.NoWarnings{} // warnings are for users; Endpoints, for example, are deprecated and still written
	return c
}

type namedRunner struct {
	name   string
	runner workqueue.Runner
	later  bool
}

func (s *scope) build(ctx context.Context, rows []row) ([]namedRunner, error) {
	var out []namedRunner
	for _, r := range rows {
		if r.off != nil && r.off(s.cfg) {
			continue
		}
		env, err := s.env(ctx, r)
		if err != nil {
			return nil, err
		}
		runner, err := r.build(s, env, r.workers)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		out = append(out, namedRunner{name: r.name, runner: runner, later: r.later})
	}
	return out, nil
}

func (s *scope) env(ctx context.Context, r row) (workqueue.Env, error) {
	user := r.user
	if user == "" {
		user = "system:serviceaccount:kube-system:" + r.name
	}
	client, err := newClient(ctx, s.term, user)
	if err != nil {
		return workqueue.Env{}, err
	}
	return workqueue.Env{
		Name: r.name, Client: client, Reader: s.reader, Rest: configFor(ctx, s.term, user), Informers: s.informers,
		Events: s.events.NewRecorder(scheme.Scheme, v1.EventSource{Component: r.name}),
		Log:    s.log,
	}, nil
}
