package limits

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	client "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	listers "k8s.io/client-go/listers/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"

	"github.com/balsahq/balsa/fault/eventhandler"
)

// settleTime is the delay between a change and the check of the default objects, so that many changes cause one check. firstRetry
// and lastRetry bound the delay after a failed check.
const (
	settleTime            = 200 * time.Millisecond
	firstRetry, lastRetry = time.Second, time.Minute
)

// Defaults are the configuration objects every cluster has, the mandatory ones first.
func Defaults() (levels, schemas []runtime.Object) {
	for _, l := range allLevels() {
		levels = append(levels, l.DeepCopy())
	}
	for _, s := range allSchemas() {
		schemas = append(schemas, s.DeepCopy())
	}
	return levels, schemas
}

func allLevels() []*flowcontrolv1.PriorityLevelConfiguration {
	return slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations)
}

func allSchemas() []*flowcontrolv1.FlowSchema {
	return slices.Concat(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas)
}

// keeper restores the default objects: mandatory ones always, suggested ones unless an administrator has taken them over
// (annotation apf.kubernetes.io/autoupdate-spec).
type keeper struct {
	client  client.FlowcontrolV1Interface
	levels  listers.PriorityLevelConfigurationLister
	schemas listers.FlowSchemaLister
	synced  []cache.InformerSynced
	changed chan struct{} // has one element when a check is due
	log     *slog.Logger
}

func newKeeper(c *Controller) *keeper {
	kinds := c.informers.Flowcontrol().V1()
	levels, schemas := kinds.PriorityLevelConfigurations(), kinds.FlowSchemas()
	k := &keeper{
		client: c.cfg.Client.FlowcontrolV1(), levels: levels.Lister(), schemas: schemas.Lister(), changed: make(chan struct{}, 1),
		synced: []cache.InformerSynced{levels.Informer().HasSynced, schemas.Informer().HasSynced}, log: c.cfg.Logger,
	}
	look := func(any) { k.look() }
	for _, i := range []cache.SharedIndexInformer{levels.Informer(), schemas.Informer()} {
		// An informer refuses handlers only after it has stopped; then no check is needed any more.
		_, _ = i.AddEventHandler(eventhandler.Contain("control/limits", cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) { k.look() }, DeleteFunc: look}))
	}
	return k
}

func (k *keeper) look() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

func (k *keeper) run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), k.synced...) {
		return nil
	}
	k.look()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		}
		if !pause(ctx, settleTime) {
			return nil
		}
		for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
			err := k.ensure(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			k.log.Warn("cannot write default objects of priority and fairness; the server tries again", "err", err)
			if !pause(ctx, wait) {
				return nil
			}
		}
	}
}

func (k *keeper) ensure(ctx context.Context) error {
	levels := ensurer.NewPriorityLevelConfigurationOps(k.client.PriorityLevelConfigurations(), k.levels)
	schemas := ensurer.NewFlowSchemaOps(k.client.FlowSchemas(), k.schemas)
	return errors.Join(
		ensurer.EnsureConfigurations(ctx, levels, bootstrap.SuggestedPriorityLevelConfigurations, ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()),
		ensurer.EnsureConfigurations(ctx, schemas, bootstrap.SuggestedFlowSchemas, ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.FlowSchema]()),
		ensurer.EnsureConfigurations(ctx, levels, bootstrap.MandatoryPriorityLevelConfigurations, ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()),
		ensurer.EnsureConfigurations(ctx, schemas, bootstrap.MandatoryFlowSchemas, ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.FlowSchema]()),
		ensurer.RemoveUnwantedObjects(ctx, schemas, allSchemas()),
		ensurer.RemoveUnwantedObjects(ctx, levels, allLevels()),
	)
}

// pause waits for d. It returns false when ctx has ended.
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
