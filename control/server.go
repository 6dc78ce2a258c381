package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/balsahq/balsa/control/aggregation"
	"github.com/balsahq/balsa/control/audit"
	"github.com/balsahq/balsa/control/encryption"
	"github.com/balsahq/balsa/control/fastread"
	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/control/limits"
	"github.com/balsahq/balsa/control/openapi"
	"github.com/balsahq/balsa/raftstore"
)

// codecs encode lists item by item, so that a large list never exists twice.
var codecs = serializer.NewCodecFactory(legacyscheme.Scheme,
	serializer.WithStreamingCollectionEncodingToJSON(), serializer.WithStreamingCollectionEncodingToProtobuf())

// Server is one API server.
type Server struct {
	cfg                 Config
	log                 *slog.Logger
	generic             *genericapiserver.GenericAPIServer
	handler             http.Handler // the generic server's chain and what it guards
	set                 *kinds.Set
	fastReader          *fastread.Handler
	aggregation         *aggregation.Aggregation
	docs                *openapi.Documents
	access              *accessControl
	auditor             *audit.Auditor // nil when nothing is recorded
	priorityAndFairness *limits.Controller
	watches             *limits.Watches

	encryption *encryption.Encryption
	roots      map[string]schema.GroupResource // of encryption; see rootsOf
	rootsOnce  sync.Once

	discovery  aggregated.ResourceManager // what /apis shows; both servers enter their groups
	extensions *extensions.CustomResourceDefinitions
	client     kubernetes.Interface // in-process, as the API server itself

	stopping context.Context // ends when no request may go on
	stop     context.CancelFunc
	ready    chan struct{}
	// defaultObjectChecks are the names, beside default-objects, of what is ready when the default objects are there.
	defaultObjectChecks []string

	entry    sync.RWMutex // held for writing to refuse new in-process requests
	refusing bool
	inflight sync.WaitGroup
}

// New assembles a server. It starts nothing; clients may be made from it at once.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	capabilities.Setup(true, 0) // validation allows privileged pods; admission plug-ins such as PodSecurity refuse them
	s := &Server{cfg: cfg.withDefaults(), ready: make(chan struct{}), discovery: aggregated.NewResourceManager("apis")}
	s.log = s.cfg.Logger
	s.stopping, s.stop = context.WithCancel(context.Background())
	client, err := kubernetes.NewForConfig(s.Client(Identity{User: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}))
	if err != nil {
		return nil, fmt.Errorf("control: in-process client: %w", err)
	}
	s.client = client
	if err := s.assemble(); err != nil {
		s.stop()
		return nil, fmt.Errorf("control: %w", err)
	}
	return s, nil
}

// assemble builds the server inside out: who may do what, then what there is, then the handlers.
func (s *Server) assemble() error {
	var err error
	if s.auditor, err = audit.New(s.cfg.Audit, s.log); err != nil {
		return err
	}
	if s.encryption, err = s.newEncryption(); err != nil {
		return err
	}
	if s.access, err = newAccessControl(s); err != nil {
		return err
	}
	if err := s.newPriorityAndFairness(); err != nil {
		return err
	}
	if s.set, err = s.buildKinds(); err != nil {
		return err
	}
	if s.fastReader, err = newFastReads(s.set); err != nil {
		return err
	}
	if s.aggregation, err = s.newAggregation(); err != nil {
		return err
	}
	if s.extensions, err = s.newExtensions(); err != nil {
		return fmt.Errorf("custom resources: %w", err)
	}
	c := s.genericConfig()
	c.RESTOptionsGetter = s.set.Deps.RESTOptions
	s.startedIsReady(c)
	s.addUpstreamChecks(c)
	if s.generic, err = c.Complete(nil).New("balsa", s.extensions.GenericAPIServer); err != nil {
		return err
	}
	s.docs, err = openapi.New(openapi.Config{
		Title: "Kubernetes", Version: KubernetesVersion, Definitions: generatedopenapi.GetOpenAPIDefinitions,
		Schemes:     []*runtime.Scheme{legacyscheme.Scheme, extensions.Scheme},
		WebServices: s.webServices, Custom: s.definitions, Aggregated: s.aggregation.Documented,
	})
	if err != nil {
		return err
	}
	i := &installer{
		server: s.generic, set: s.set, docs: s.docs, admission: s.access.admission.Interface, // the chain itself: handlers look for what more it implements
		addresses: discovery.DefaultAddresses{DefaultAddress: s.address()}, beside: slices.Concat(s.initializerVersions(), s.oldVersions()),
	}
	if err := i.install(); err != nil {
		return err
	}
	s.describeInitializers()
	s.describeOldVersions()
	mux := s.generic.Handler.NonGoRestfulMux
	mux.HandleFunc("/openapi/v2", s.docs.ServeV2)
	mux.HandleFunc("/openapi/v3", s.docs.ServeV3)
	mux.HandlePrefix("/openapi/v3/", http.HandlerFunc(s.docs.ServeV3))
	s.installIssuer()
	s.priorityAndFairness.Install(mux)
	mux.Handle(encryption.Path, s.encryption.Handler())
	for path, h := range s.cfg.Debug {
		mux.Handle(path, h)
	}
	if s.cfg.Settings != nil {
		flagz.Install(mux, "balsa", settings(s.cfg.Settings))
	}
	s.generic.PrepareRun()
	s.handler = s.generic.Handler
	return s.followGroups()
}

// settings implements flagz.Reader.
type settings map[string]string

// GetFlagz implements flagz.Reader.
func (s settings) GetFlagz() map[string]string { return s }

// aliveAnyway is how long /livez ignores unfinished start-up steps: a server may wait for a quorum until an administrator
// restores it.
const aliveAnyway = 100 * 365 * 24 * time.Hour

// genericConfig is upstream's server without storage, without its OpenAPI and without its hooks that only count.
func (s *Server) genericConfig() *genericapiserver.Config {
	c := genericapiserver.NewConfig(codecs)
	c.EffectiveVersion = effectiveVersion()
	c.ExternalAddress = s.address()
	c.LoopbackClientConfig = s.Client(Identity{User: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	c.Authentication.Authenticator = s.access.authn.Request
	c.Authentication.APIAudiences = s.access.authn.Audiences
	c.Authorization.Authorizer = s.access.authz.Authorizer
	c.RuleResolver = s.access.authz.RuleResolver
	c.AdmissionControl = s.access.admission.Interface
	c.Authentication.RequestHeaderConfig = s.access.authn.Headers
	if s.auditor != nil {
		c.AuditBackend, c.AuditPolicyRuleEvaluator = s.auditor.Backend, s.auditor.Rules
	}
	c.BuildHandlerChainFunc = s.handlerChain
	c.LongRunningFunc = longRunning
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = s.cfg.MaxReads, s.cfg.MaxWrites
	c.RequestTimeout = s.cfg.RequestTimeout
	c.MaxRequestBodyBytes = maxBody
	c.EnableProfiling = false
	c.AggregatedDiscoveryGroupManager = s.discovery
	c.SkipOpenAPIInstallation = true
	c.StorageObjectCountTracker = nil
	c.DisabledPostStartHooks.Insert("max-in-flight-filter")
	ping := []healthz.HealthChecker{healthz.PingHealthz}
	c.HealthzChecks, c.LivezChecks, c.ReadyzChecks = slices.Clone(ping), slices.Clone(ping), slices.Clone(ping)
	store := func(*http.Request) error { return s.cfg.Store.Err() }
	// A server without a quorum, or with a failing disk, is alive but not ready: a restart would not help.
	alive := func(*http.Request) error {
		if err := s.cfg.Store.Err(); errors.Is(err, raftstore.ErrClosed) {
			return err
		}
		return nil
	}
	for _, name := range []string{"store", "etcd"} { // the second is upstream's name for it
		c.HealthzChecks = append(c.HealthzChecks, healthz.NamedCheck(name, alive))
		c.LivezChecks = append(c.LivezChecks, healthz.NamedCheck(name, alive))
		c.ReadyzChecks = append(c.ReadyzChecks, healthz.NamedCheck(name, store))
	}
	c.LivezGracePeriod = aliveAnyway
	c.ReadyzChecks = append(c.ReadyzChecks, healthz.NamedCheck("etcd-readiness", store), healthz.NamedCheck(checkDefaultObjects, s.checkDefaults))
	c.ReadyzChecks = append(c.ReadyzChecks, s.encryptionChecks()...)
	return c
}

// startedIsReady makes what the extensions' server starts with a matter of readiness alone. Upstream enters a delegate's
// checks everywhere, unless one of that name is there.
func (s *Server) startedIsReady(c *genericapiserver.Config) {
	for _, check := range s.extensions.GenericAPIServer.HealthzChecks() {
		if strings.HasPrefix(check.Name(), "poststarthook/") {
			c.ReadyzChecks = append(c.ReadyzChecks, check)
			c.HealthzChecks = append(c.HealthzChecks, healthz.NamedCheck(check.Name(), func(*http.Request) error { return nil }))
		}
	}
}

// webServices are the endpoints of both servers.
func (s *Server) webServices() []*restful.WebService {
	all := slices.DeleteFunc(s.generic.Handler.GoRestfulContainer.RegisteredWebServices(), s.isOfOldVersion)
	for _, ws := range s.extensions.GenericAPIServer.Handler.GoRestfulContainer.RegisteredWebServices() {
		if strings.HasPrefix(ws.RootPath(), "/apis/"+apiextensionsv1.GroupName) {
			all = append(all, ws)
		}
	}
	return all
}

// address is where other members reach this server, as host:port.
func (s *Server) address() string {
	return addrPort(s.cfg.AdvertiseAddress, s.cfg.AdvertisePort)
}

// Ready is closed when the server serves and the objects every cluster has are there.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// SignToken makes the token that a Secret of type kubernetes.io/service-account-token holds for an account.
func (s *Server) SignToken(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return s.access.authn.SignSecret(sa, secret)
}

// Handler returns the whole API behind its filters, for a listener of the caller.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) checkDefaults(*http.Request) error {
	select {
	case <-s.ready:
		return nil
	default:
		return fmt.Errorf("default objects are being written")
	}
}

// enter counts an in-process request; it returns false if the server has stopped.
func (s *Server) enter() bool {
	s.entry.RLock()
	defer s.entry.RUnlock()
	if s.refusing {
		return false
	}
	s.inflight.Add(1)
	return true
}

// serverContext is the context of requests the server makes of its own registries.
func serverContext(ctx context.Context) context.Context {
	return apirequest.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}
