package admission

import (
	"context"
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/informers"
)

type quotaInitializer struct{ cfg quota.Configuration }

func (q quotaInitializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(q.cfg)
	}
}

// lazy is a plugin that is built when it is first needed. While needed returns false, it costs one read of the store.
type lazy struct {
	*admission.Handler
	name   string
	needed func() bool
	make   func() (admission.Interface, error)

	mu    sync.Mutex
	inner admission.Interface
}

func (l *lazy) plugin() (admission.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inner != nil {
		return l.inner, nil
	}
	p, err := l.make()
	if err != nil {
		return nil, fmt.Errorf("admission: build %s: %w", l.name, err)
	}
	l.inner = p
	return p, nil
}

// mutating is a lazy plugin of the mutating phase.
type mutating struct{ *lazy }

// Admit implements admission.MutationInterface.
func (l mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if !l.needed() {
		return nil
	}
	p, err := l.plugin()
	if err != nil {
		return err
	}
	if m, ok := p.(admission.MutationInterface); ok && p.Handles(a.GetOperation()) {
		return m.Admit(ctx, a, o)
	}
	return nil
}

// validating is a lazy plugin of the validating phase.
type validating struct{ *lazy }

// Validate implements admission.ValidationInterface.
func (l validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if !l.needed() {
		return nil
	}
	p, err := l.plugin()
	if err != nil {
		return err
	}
	if v, ok := p.(admission.ValidationInterface); ok && p.Handles(a.GetOperation()) {
		return v.Validate(ctx, a, o)
	}
	return nil
}

// registerLazy registers the four plugins that compile expressions or call webhooks.
func (b *builder) registerLazy(plugins *admission.Plugins, init admission.PluginInitializers, configured pluginConfigs) {
	config := func(name string) io.Reader {
		r, _ := configured.ConfigFor(name) // an error means that there is no configuration
		return r
	}
	all := admission.NewHandler(admission.Create, admission.Update, admission.Delete, admission.Connect)
	first := func(l *lazy) {
		plugins.Register(l.name, func(io.Reader) (admission.Interface, error) { return mutating{l}, nil })
	}
	second := func(l *lazy) {
		plugins.Register(l.name, func(io.Reader) (admission.Interface, error) { return validating{l}, nil })
	}
	first(&lazy{Handler: all, name: mutatingwebhook.PluginName, needed: func() bool { return b.factory.MutatingWebhooks() > 0 }, make: func() (admission.Interface, error) {
		p, err := mutatingwebhook.NewMutatingWebhook(config(mutatingwebhook.PluginName))
		return ready(p, err, init)
	}})
	second(&lazy{Handler: all, name: validatingwebhook.PluginName, needed: func() bool { return b.factory.ValidatingWebhooks() > 0 }, make: func() (admission.Interface, error) {
		p, err := validatingwebhook.NewValidatingAdmissionWebhook(config(validatingwebhook.PluginName))
		return ready(p, err, init)
	}})
	second(&lazy{Handler: all, name: validatingpolicy.PluginName, needed: b.exist("validatingadmissionpolicies"), make: func() (admission.Interface, error) {
		p, err := validatingpolicy.NewPlugin(nil)
		return b.policy(p, err, init)
	}})
	first(&lazy{Handler: all, name: mutatingpolicy.PluginName, needed: b.exist("mutatingadmissionpolicies"), make: func() (admission.Interface, error) {
		p, err := mutatingpolicy.NewPlugin(nil)
		return b.policy(p, err, init)
	}})
}

func (b *builder) exist(resource string) func() bool {
	i := b.cfg.Live.Fresh(schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: resource})
	return func() bool {
		found := false
		i.EachVersion("", func(string, []byte, int64) bool {
			found = true
			return false
		})
		return found
	}
}

func ready[P admission.Interface](p P, err error, init admission.PluginInitializers) (admission.Interface, error) {
	if err != nil {
		return nil, err
	}
	init.Initialize(p)
	return p, admission.ValidateInitialization(p)
}

// policy starts informers for a policy plugin, which compiles policies when events report them.
func (b *builder) policy(p admission.Interface, err error, init admission.PluginInitializers) (admission.Interface, error) {
	if err != nil {
		return nil, err
	}
	init.Initialize(p)
	running := informers.NewSharedInformerFactory(b.cfg.Client, 0)
	if wants, ok := p.(initializer.WantsExternalKubeInformerFactory); ok {
		wants.SetExternalKubeInformerFactory(running)
	}
	if err := admission.ValidateInitialization(p); err != nil {
		return nil, err
	}
	running.Start(b.ctx.Done())
	return p, nil
}
