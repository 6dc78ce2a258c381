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

// final are plugins whose refusal stands: they decide by what others answer, who are not to be asked twice, or count how
// often they are asked.
var final = []string{
	eventratelimit.PluginName, imagepolicy.PluginName, mutatingpolicy.PluginName, mutatingwebhook.PluginName, validatingpolicy.PluginName, validatingwebhook.PluginName,
}

var operations = []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect}

// sequence asks plugins one after the other, as upstream's chain does, and counts how long each took. Who is asked for
// which operation is known beforehand, so that nobody is asked, or counted, for nothing.
//
// It asks a plugin again before an object is refused: what it lacks, the namespace's labels, a quota that was raised, a
// pod's node, may have been written through another server a moment ago. Plugins refuse before they change anything, or
// change the same again.
type sequence struct {
	store     *listers.Store
	handles   map[admission.Operation]bool
	admits    map[admission.Operation][]step
	validates map[admission.Operation][]step
}

// step is one question to one plugin.
type step struct {
	name  string
	kind  string // as metrics call it
	final bool
	ask   func(context.Context, admission.Attributes, admission.ObjectInterfaces) error
}

func newSequence(store *listers.Store) *sequence {
	return &sequence{store: store, handles: map[admission.Operation]bool{}, admits: map[admission.Operation][]step{}, validates: map[admission.Operation][]step{}}
}

// take enters a plugin as the last one. It is an admission.DecoratorFunc.
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

// Admit implements admission.MutationInterface. Plugins are asked once more when a webhook that came after them has
// changed the object.
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

// countedIn is the context in which plugins are counted. Each observation looks for a trace to point to, through all that
// the request's context holds; where nobody traces the request, that is done once.
func countedIn(ctx context.Context) context.Context {
	if trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx
	}
	return context.Background()
}
