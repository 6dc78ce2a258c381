package admission

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"

	"github.com/balsahq/balsa/control/auth/live"
)

// final are plugins whose refusal stands: they decide by what others answer, who are not to be asked twice.
var final = []string{mutatingpolicy.PluginName, mutatingwebhook.PluginName, validatingpolicy.PluginName, validatingwebhook.PluginName}

// confirm makes a plugin's refusal be looked at again.
func (b *builder) confirm(plugin admission.Interface, name string) admission.Interface {
	if slices.Contains(final, name) {
		return plugin
	}
	return confirmed{plugin, b.cfg.Live}
}

// confirmed asks a plugin again before an object is refused: what it lacks, the namespace's labels, a quota that was
// raised, a pod's node, may have been written through another server a moment ago. Plugins refuse before they change
// anything, or change the same again.
type confirmed struct {
	admission.Interface
	store *live.Store
}

// Admit implements admission.MutationInterface.
func (c confirmed) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, ok := c.Interface.(admission.MutationInterface)
	if !ok {
		return nil
	}
	return c.again(ctx, func() error { return p.Admit(ctx, a, o) })
}

// Validate implements admission.ValidationInterface.
func (c confirmed) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, ok := c.Interface.(admission.ValidationInterface)
	if !ok {
		return nil
	}
	return c.again(ctx, func() error { return p.Validate(ctx, a, o) })
}

func (c confirmed) again(ctx context.Context, ask func() error) error {
	since := c.store.Revision()
	err := ask()
	if err == nil || !c.store.Confirm(ctx, since) {
		return err
	}
	return ask()
}
