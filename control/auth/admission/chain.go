package admission

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"

	"github.com/balsahq/balsa/control/auth/listers"
	"github.com/balsahq/balsa/fault"
)

// final are plugins whose refusal is not checked again: they decide by the answer of another server, which must not be
// called twice, or count their calls.
var final = []string{
	eventratelimit.PluginName, imagepolicy.PluginName, mutatingpolicy.PluginName, mutatingwebhook.PluginName, validatingpolicy.PluginName, validatingwebhook.PluginName,
}

var operations = []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect}

// sequence calls plugins one after the other, as upstream's chain does, and measures how long each takes. It knows
// beforehand which plugin handles which operation, so that no other plugin is called or counted.
//
// Before an object is refused, it calls the plugin again: another server may have written what the plugin misses (a
// namespace's labels, a raised quota, a pod's node) a moment ago. That is safe, because plugins refuse before they
// change anything, or make the same change again.
type sequence struct {
	store     *listers.Store
	handles   map[admission.Operation]bool
	admits    map[admission.Operation][]step
	validates map[admission.Operation][]step
}

// step is one method of one plugin.
type step struct {
	name  string
	kind  string // the metrics' label
	final bool
	ask   func(context.Context, admission.Attributes, admission.ObjectInterfaces) error
}

func newSequence(store *listers.Store) *sequence {
	return &sequence{store: store, handles: map[admission.Operation]bool{}, admits: map[admission.Operation][]step{}, validates: map[admission.Operation][]step{}}
}

// take appends a plugin. It is an admission.DecoratorFunc.
func (s *sequence) take(plugin admission.Interface, name string) admission.Interface {
	for _, o := range operations {
		if !plugin.Handles(o) {
			continue
		}
		s.handles[o] = true
		last := slices.Contains(final, name)
		if p, ok := plugin.(admission.MutationInterface); ok {
			s.admits[o] = append(s.admits[o], step{name, "admit", last, p.Admit})
		}
		if p, ok := plugin.(admission.ValidationInterface); ok {
			s.validates[o] = append(s.validates[o], step{name, "validate", last, p.Validate})
		}
	}
	return plugin
}

// Handles implements admission.Interface.
func (s *sequence) Handles(o admission.Operation) bool { return s.handles[o] }

// Admit implements admission.MutationInterface. The plugins are called again when a webhook after them has changed the
// object.
func (s *sequence) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	fault.Point("control/admission")
	if err := s.run(ctx, s.admits[a.GetOperation()], a, o); err != nil {
		return err
	}
	if again := a.GetReinvocationContext(); again.ShouldReinvoke() {
		again.SetIsReinvoke()
		return s.run(ctx, s.admits[a.GetOperation()], a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (s *sequence) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	fault.Point("control/validation")
	return s.run(ctx, s.validates[a.GetOperation()], a, o)
}

func (s *sequence) run(ctx context.Context, steps []step, a admission.Attributes, o admission.ObjectInterfaces) error {
	since, counted := s.store.Revision(), countedIn(ctx)
	began := time.Now()
	for i := range steps {
		p := &steps[i]
		err := p.ask(ctx, a, o)
		if err != nil && !p.final && s.store.Confirm(ctx, since) {
			err = p.ask(ctx, a, o)
		}
		ended := time.Now()
		admissionmetrics.Metrics.ObserveAdmissionController(counted, ended.Sub(began), err != nil, a, p.kind, p.name)
		if err != nil {
			return err
		}
		began = ended
	}
	return nil
}

// countedIn returns the context for metrics. Each observation searches the request's context for a trace to refer to.
// If the request is not traced, this search is done only once.
func countedIn(ctx context.Context) context.Context {
	if trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx
	}
	return context.Background()
}
