package admission

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/autoprovision"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/exists"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"

	"github.com/balsahq/balsa/control/auth/listers"
)

// Config configures New.
type Config struct {
	Live *listers.Store
	// Client writes the status of quotas and reads kinds that listers do not.
	Client kubernetes.Interface
	// Dynamic and RESTMapper are for admission policies with parameters.
	Dynamic    dynamic.Interface
	RESTMapper meta.RESTMapper
	Authorizer authorizer.Authorizer
	// Loopback is the client configuration for a webhook that names the kubernetes Service; nil calls such webhooks
	// without credentials.
	Loopback *rest.Config
	// Dial connects to the Services of webhooks; nil dials directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Enabled reports whether a resource is served, so that quota does not list others; nil: all are.
	Enabled func(schema.GroupVersionResource) bool
	// TolerationSeconds is how long a new pod stays on a node that is not ready or unreachable, unless the pod says
	// otherwise. nil means upstream's default, 300; 0 means not at all.
	TolerationSeconds *int64
	// Settings say which plugins run, and configure them.
	Settings Settings
	// CheckNodeIPs returns why a node may not claim these addresses; nil allows all.
	CheckNodeIPs func(node string, ips []net.IP) error
	// PodPresets switches the PodPreset plugin on. The kind is served by a CustomResourceDefinition.
	PodPresets bool
	// Initializers switches the Initializers plugin on. The kind is served by a CustomResourceDefinition.
	Initializers bool
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	for name, missing := range map[string]bool{"Live": c.Live == nil, "Client": c.Client == nil, "Authorizer": c.Authorizer == nil} {
		if missing {
			errs = append(errs, fmt.Errorf("admission: %s must be set", name))
		}
	}
	return errors.Join(append(errs, c.Settings.Validate())...)
}

// order is upstream's order of all plugins. Settings say which of them run. See the package comment.
var order = []string{
	admit.PluginName, autoprovision.PluginName, lifecycle.PluginName, exists.PluginName, antiaffinity.PluginName, limitranger.PluginName,
	serviceaccount.PluginName, noderestriction.PluginName, nodeClaimsName, nodetaint.PluginName, alwayspullimages.PluginName, imagepolicy.PluginName,
	podsecurity.PluginName, podnodeselector.PluginName, priority.PluginName, tolerateName, podtolerationrestriction.PluginName,
	eventratelimit.PluginName, extendedresourcetoleration.PluginName, defaultClassName, protectName, gc.PluginName, resize.PluginName,
	runtimeclass.PluginName, approval.PluginName, signing.PluginName, ctbattest.PluginName, subjectrestriction.PluginName,
	defaultingressclass.PluginName, denyserviceexternalips.PluginName, podtopologylabels.PluginName, podresize.PluginName,
	mutatingpolicy.PluginName, mutatingwebhook.PluginName, noEffectName, validatingpolicy.PluginName, validatingwebhook.PluginName,
	resourcequota.PluginName, deny.PluginName,
}

// Chain is the admission chain for the API server.
type Chain struct {
	admission.Interface
	stop context.CancelFunc
}

// Stop ends the goroutines of plugins. The chain must not be used afterwards.
func (c *Chain) Stop() { c.stop() }

// New builds the chain. It starts nothing. Goroutines that plugins start when they are first needed end with Stop.
func New(cfg Config) (*Chain, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &builder{cfg: cfg, ctx: ctx, factory: listers.NewFactory(cfg.Live, informers.NewSharedInformerFactory(cfg.Client, 0))}
	chain, err := b.build()
	if err != nil {
		stop()
		return nil, fmt.Errorf("admission: %w", err)
	}
	return &Chain{Interface: admissionmetrics.WithStepMetrics(chain), stop: stop}, nil
}

type builder struct {
	cfg     Config
	ctx     context.Context // of the plugins' goroutines; ended by Chain.Stop
	factory *listers.Factory
}

func (b *builder) build() (admission.Interface, error) {
	plugins := admission.NewPlugins()
	for _, register := range []func(*admission.Plugins){
		lifecycle.Register, limitranger.Register, serviceaccount.Register, noderestriction.Register, nodetaint.Register, podsecurity.Register,
		priority.Register, b.registerTolerate, b.registerNodeClaims, registerDefaultClass, registerProtect, registerNoEffect, b.registerPodPreset, b.registerInitializers, resize.Register,
		runtimeclass.Register, approval.Register, signing.Register, ctbattest.Register, subjectrestriction.Register,
		defaultingressclass.Register, podtopologylabels.Register, podresize.Register, resourcequota.Register,
	} {
		register(plugins)
	}
	registerOptional(plugins)
	configured, err := b.cfg.Settings.configs()
	if err != nil {
		return nil, err
	}
	init, err := b.initializers()
	if err != nil {
		return nil, err
	}
	b.registerLazy(plugins, init, configured)
	chain := newSequence(b.cfg.Live)
	_, err = plugins.NewFromPlugins(b.cfg.Settings.plugins(b.withInitializers(b.withPresets())), configured, init, admission.Decorators{
		admission.DecoratorFunc(b.unlimited), admission.DecoratorFunc(chain.take),
	})
	return chain, err
}

// unlimited wraps the ResourceQuota plugin, so that writes in namespaces without a quota skip it.
func (b *builder) unlimited(plugin admission.Interface, name string) admission.Interface {
	if p, ok := plugin.(admission.ValidationInterface); ok && name == resourcequota.PluginName {
		return unlimited{p, b.cfg.Live.Kept(schema.GroupResource{Resource: "resourcequotas"}), b.factory.DeviceClasses}
	}
	return plugin
}

func (b *builder) initializers() (admission.PluginInitializers, error) {
	quota, err := b.quotaConfiguration()
	if err != nil {
		return nil, fmt.Errorf("quota evaluators: %w", err)
	}
	resolver := webhook.NewDefaultAuthenticationInfoResolverWrapper(&http.Transport{DialContext: b.cfg.Dial}, nil, b.cfg.Loopback, nil)
	return admission.PluginInitializers{
		webhookinit.NewPluginInitializer(resolver, b.services()),
		initializer.New(b.cfg.Client, b.cfg.Dynamic, b.factory, b.cfg.Authorizer, utilfeature.DefaultFeatureGate,
			compatibility.DefaultBuildEffectiveVersion(), b.ctx.Done(), b.cfg.RESTMapper),
		quotaInitializer{quota},
	}, nil
}

// serviceResolver finds the cluster IP of a webhook's Service.
type serviceResolver struct{ lister corelisters.ServiceLister }

func (b *builder) services() serviceResolver {
	return serviceResolver{corelisters.NewServiceLister(b.cfg.Live.Fresh(schema.GroupResource{Resource: "services"}))}
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (s serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(s.lister, namespace, name, port)
}

// served is a storage.APIResourceConfigSource. It leaves resource claims out, because upstream's registry would give
// their evaluator informers that run from the start. quotaConfiguration adds that evaluator without informers.
type served func(schema.GroupVersionResource) bool

// ResourceEnabled implements storage.APIResourceConfigSource.
func (s served) ResourceEnabled(gvr schema.GroupVersionResource) bool {
	return gvr.Group != "resource.k8s.io" && (s == nil || s(gvr))
}

// ResourceExplicitlyEnabled implements storage.APIResourceConfigSource.
func (s served) ResourceExplicitlyEnabled(schema.GroupVersionResource) bool { return false }

// VersionExplicitlyEnabled implements storage.APIResourceConfigSource.
func (s served) VersionExplicitlyEnabled(schema.GroupVersion) bool { return false }

// AnyResourceForGroupEnabled implements storage.APIResourceConfigSource.
func (s served) AnyResourceForGroupEnabled(group string) bool { return group != "resource.k8s.io" }
