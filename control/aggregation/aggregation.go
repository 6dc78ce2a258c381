package aggregation

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	localavailability "k8s.io/kube-aggregator/pkg/controllers/status/local"
	availabilitymetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
)

// workers is the number of workers of each of upstream's controllers, whose work is rare and short.
const workers = 2

// Certificate is the client certificate that targets see; pki.Leaf implements it.
type Certificate interface {
	GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	CertPEM() []byte
	KeyPEM() []byte
}

// Config says which groups this server serves, and how it reaches other servers.
type Config struct {
	// Client and Core act as the API server itself, within the process.
	Client *restclient.Config
	Core   kubernetes.Interface
	// Builtin are the group versions of the program. Definitions returns the CustomResourceDefinitions that this server
	// knows; Newest reads them from the store.
	Builtin     []schema.GroupVersion
	Definitions func() []*apiextensionsv1.CustomResourceDefinition
	Newest      func(context.Context) ([]*apiextensionsv1.CustomResourceDefinition, error)
	// Discovery is the aggregated document of /apis. Groups returns the plain document of the groups that this server
	// serves.
	Discovery aggregated.ResourceManager
	Groups    func() discovery.GroupManager
	// Certificate is the front proxy's; Verify returns its CA.
	Certificate Certificate
	Verify      x509.VerifyOptionFunc
	// Dial connects to pods; nil dials directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every missing field.
func (c Config) Validate() error {
	var errs []error
	for name, missing := range map[string]bool{
		"Client": c.Client == nil, "Core": c.Core == nil, "Definitions": c.Definitions == nil, "Newest": c.Newest == nil, "Discovery": c.Discovery == nil,
		"Groups": c.Groups == nil, "Certificate": c.Certificate == nil, "Verify": c.Verify == nil,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("aggregation: Config.%s must be set", name))
		}
	}
	return errors.Join(errs...)
}

// Aggregation passes requests on to other servers. Its methods are safe for concurrent use.
type Aggregation struct {
	cfg      Config
	log      *slog.Logger
	client   *clientset.Clientset
	factory  informers.SharedInformerFactory
	services apiregistrationinformers.APIServiceInformer
	metrics  *availabilitymetrics.Metrics
	root     http.Handler // serves /apis

	table atomic.Pointer[table] // nil while there is no target

	begin, synced chan struct{} // closed when Run may start its work; closed when it has read everything once
	beginOnce     sync.Once
	changed       chan struct{} // holds one token when Run should look again
}

// New returns an Aggregation whose Run is still to be called. It may handle requests before that.
func New(cfg Config) (*Aggregation, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	a := &Aggregation{
		cfg: cfg, log: cfg.Logger, metrics: availabilitymetrics.New(),
		begin: make(chan struct{}), synced: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	var err error
	if a.client, err = clientset.NewForConfig(cfg.Client); err != nil {
		return nil, fmt.Errorf("aggregation: client: %w", err)
	}
	a.factory = informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithTransform(dropUnreadFields))
	a.services = a.factory.Apiregistration().V1().APIServices()
	a.root = a.rootHandler()
	registerOnce.Do(func() { _ = a.metrics.Register(legacyregistry.Register, legacyregistry.CustomRegister) })
	return a, nil
}

// registerOnce: metrics belong to the process. If tests run several servers in one process, the first one's are shown.
var registerOnce sync.Once

// dropUnreadFields drops fields of cached objects that this package does not read.
func dropUnreadFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// Look makes Run compare the definitions of custom resources with their APIServices again.
func (a *Aggregation) Look() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Await lets Run start its work; call it once the store can be read and the default objects are there. It returns when
// every existing APIService has its route, so that a request for a group that another server serves is not answered
// with 404.
func (a *Aggregation) Await(ctx context.Context) error {
	a.beginOnce.Do(func() { close(a.begin) })
	select {
	case <-ctx.Done():
	case <-a.synced:
	}
	return nil
}

// Run maintains the APIServices of the groups served here and follows all others, from the first Await until ctx ends.
func (a *Aggregation) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.begin:
	}
	informer := a.services.Informer()
	registration, err := informer.AddEventHandler(eventhandler.Contain("control/aggregation", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { a.Look() }, UpdateFunc: func(_, _ any) { a.Look() }, DeleteFunc: func(any) { a.Look() },
	}))
	if err != nil {
		return fmt.Errorf("aggregation: %w", err)
	}
	keeper := autoregister.NewAutoRegisterController(a.services, lateDefinitionGuard{a.client.ApiregistrationV1(), a.cfg.Newest})
	always, err := localavailability.New(a.services, a.client.ApiregistrationV1(), a.metrics)
	if err != nil {
		return fmt.Errorf("aggregation: %w", err)
	}
	local := newLocalServices(a.cfg, keeper)
	local.update() // before the keeper starts, which removes APIServices that it does not know
	g, ctx := errgroup.WithContext(ctx)
	a.factory.Start(ctx.Done())
	defer a.factory.Shutdown()
	g.Go(fault.ContainedErr("control/aggregation", func() error { keeper.Run(workers, ctx.Done()); return nil }))
	g.Go(fault.ContainedErr("control/aggregation", func() error { always.Run(workers, ctx.Done()); return nil }))
	g.Go(fault.ContainedErr("control/aggregation", func() error {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			a.follow(ctx, local)
		}
		return nil
	}))
	return g.Wait()
}

// follow maintains the table until ctx ends.
func (a *Aggregation) follow(ctx context.Context, local *localServices) {
	f := newFollower(a)
	defer f.stop()
	f.update(ctx)
	close(a.synced)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
			local.update()
			f.update(ctx)
		}
	}
}

// all returns the known APIServices. They are read-only.
func (a *Aggregation) all() []*apiregistrationv1.APIService {
	list, _ := a.services.Lister().List(labels.Everything()) // an indexer never fails
	return list
}
