package limits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/fault"
)

// Config configures a Controller.
type Config struct {
	// Client is the in-process client that reads the configuration objects and restores the default ones.
	Client kubernetes.Interface
	// Seats bounds the requests that are handled at once, over all priority levels without the exempt one.
	Seats int
	// Patience is how long a request without a deadline may wait for a seat.
	Patience time.Duration
	// Count returns the number of objects of a resource ("pods", "deployments.apps"); see Counts.
	Count func(resource string) (storage.Stats, error)
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	for name, missing := range map[string]bool{"Client": c.Client == nil, "Count": c.Count == nil, "Seats": c.Seats <= 0, "Patience": c.Patience <= 0} {
		if missing {
			errs = append(errs, fmt.Errorf("flow: Config.%s must be set", name))
		}
	}
	return errors.Join(errs...)
}

// Controller assigns seats to requests.
type Controller struct {
	cfg       Config
	informers informers.SharedInformerFactory
	upstream  flowcontrol.Interface
	estimate  request.WorkEstimatorFunc
}

// New returns a Controller with the two mandatory priority levels; the configuration objects take effect once Run runs.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &Controller{cfg: cfg, informers: informers.NewSharedInformerFactory(cfg.Client, 0)}
	c.upstream = flowcontrol.New(c.informers, cfg.Client.FlowcontrolV1(), cfg.Seats)
	c.estimate = request.NewWorkEstimator(cfg.Count, c.upstream.GetInterestedWatchCount, request.DefaultWorkEstimatorConfig(), c.upstream.GetMaxSeats)
	return c, nil
}

// Fair lets a request pass when its flow has a seat, and refuses it with 429 and Retry-After when it has waited too long or
// too many wait before it.
func (c *Controller) Fair(next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	return filters.WithPriorityAndFairness(next, longRunning, c.upstream, c.estimate, c.cfg.Patience)
}

// Install adds the handlers of /debug/api_priority_and_fairness/…, which list waiting and running requests.
func (c *Controller) Install(mux *mux.PathRecorderMux) { c.upstream.Install(mux) }

// Run follows the configuration objects and keeps the default ones until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	keep := newKeeper(c)
	c.informers.Start(ctx.Done())
	defer c.informers.Shutdown()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(fault.ContainedErr("control/limits", func() error {
		if err := c.upstream.Run(ctx.Done()); err != nil && ctx.Err() == nil {
			return fmt.Errorf("flow: %w", err)
		}
		return nil
	}))
	g.Go(fault.ContainedErr("control/limits", func() error { return keep.run(ctx) }))
	return g.Wait()
}
