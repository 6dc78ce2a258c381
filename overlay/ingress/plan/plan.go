package plan

import (
	"cmp"
	"crypto/tls"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress/route"
)

// The controller names with which an IngressClass and a GatewayClass are served here.
const (
	IngressController = "balsa.dev/ingress"
	GatewayController = "balsa.dev/gateway"
)

// ErrPending is the error of Objects.Certificate for a Secret that has not been read yet; no status mentions it.
var ErrPending = errors.New("the Secret is being read")

// Objects is everything a plan is made from. The functions must answer from memory, the same during one Build.
type Objects struct {
	Classes   []*netv1.IngressClass
	Ingresses []*netv1.Ingress
	// Service returns nil when there is none.
	Service func(namespace, name string) *v1.Service
	// Certificate reads a Secret of type kubernetes.io/tls. Its error is shown to people: it must not quote the Secret.
	Certificate func(namespace, name string) (*tls.Certificate, error)
	// NamespaceLabels are asked for when a listener chooses namespaces by label; nil where no Gateway may be.
	NamespaceLabels func(name string) (map[string]string, bool)

	GatewayClasses []*gw.GatewayClass
	Gateways       []*gw.Gateway
	HTTPRoutes     []*gw.HTTPRoute
	GRPCRoutes     []*gw.GRPCRoute
	Grants         []*gw.ReferenceGrant
}

// Config says which ports Ingresses have, and Gateways' 80 and 443.
type Config struct{ HTTPPort, HTTPSPort uint16 }

// Protocol is the protocol to a backend.
type Protocol string

// The protocols.
const (
	HTTP  Protocol = "http"  // HTTP/1.1
	H2C   Protocol = "h2c"   // HTTP/2 without TLS, what gRPC speaks
	HTTPS Protocol = "https" // TLS, with HTTP/2 where the backend has it; its certificate is not verified
)

// Backend is a port of a Service, as its EndpointSlices name it. It is comparable.
type Backend struct {
	Namespace, Service string
	Port               string // the port's name; "" is that of an unnamed one
	Protocol           Protocol
}

// Target is what happens to the requests of a rule.
type Target struct {
	Owner    v1.ObjectReference
	Backends []Weighted // chosen among by weight
	// Broken, when set, is why such requests are answered with status 500.
	Broken     string
	Redirect   *Redirect
	ForceHTTPS bool // requests without TLS are sent there
	Rewrite    *Rewrite
	Request    Headers
	Response   Headers
	Mirrors    []Mirror
	// Timeout bounds a request from its first byte to the answer's last, AttemptTimeout an attempt at a backend until
	// its header; 0: none.
	Timeout, AttemptTimeout time.Duration
}

// Weighted is one backend of several.
type Weighted struct {
	Backend  Backend
	Weight   int32  // in proportion to the sum; 0: none
	Broken   string // why the backend is not there; its share is answered with status 500, or 503 for an Ingress
	Request  Headers
	Response Headers
}

// Mirror is a backend that gets a copy of Numerator in Denominator requests; its answers count for nothing.
type Mirror struct {
	Backend                Backend
	Numerator, Denominator int32
}

// Headers are the changes of headers, in this order. Names are canonical.
type Headers struct {
	Set, Add []Header
	Remove   []string
}

// Header is one line.
type Header struct{ Name, Value string }

// Redirect is an answer that sends the client elsewhere. Empty fields stay what they are in the request.
type Redirect struct {
	Scheme, Host string
	Port         int32
	Path         *PathChange
	Status       int
}

// Rewrite changes what a backend is asked for.
type Rewrite struct {
	Host string
	Path *PathChange
}

// PathChange replaces the whole path, or what the rule's prefix matched of it.
type PathChange struct {
	Prefix bool
	Value  string
}

// Listener is a port and a hostname, which routes of Gateways share.
type Listener struct {
	Port  int32 // as the Gateway names it
	Rules *route.Table[*Target]
}

// Port is one TCP port to listen on.
type Port struct {
	Number uint16
	TLS    bool
	// Certificates are shown by the name the client asks for; without one that fits, a self-signed one is.
	Certificates route.HostMap[[]*tls.Certificate]
	Ingress      *route.Table[*Target]
	Listeners    route.HostMap[*Listener]
	// Owners are the objects the port is opened for.
	Owners []v1.ObjectReference
}

// Problem is something an object's owner should hear of.
type Problem struct {
	Object  v1.ObjectReference
	Reason  string // in CamelCase
	Message string
}

// GatewayState is the status that a Gateway should have, without times and addresses.
type GatewayState struct {
	Gateway    *gw.Gateway
	Conditions []metav1.Condition
	Listeners  []gw.ListenerStatus
}

// RouteState is the status that a route should have for our Gateways; Parents has no others.
type RouteState struct {
	Kind            string // HTTPRoute or GRPCRoute
	Namespace, Name string
	Generation      int64
	Parents         []gw.RouteParentStatus
}

// Plan is what there is to do.
type Plan struct {
	Ports    map[uint16]*Port
	Secrets  map[types.NamespacedName]bool // whose content matters; each is one somebody allowed to be used
	Services map[types.NamespacedName]bool // that some rule names, whether they exist or not
	Backends map[Backend]bool
	Problems []Problem

	Ingresses []*netv1.Ingress   // that are ours
	Classes   []*gw.GatewayClass // that are ours
	Gateways  []GatewayState
	Routes    []RouteState
}

// Build makes the plan.
func Build(cfg Config, o *Objects) *Plan {
	b := &builder{
		cfg: cfg, o: o, plan: &Plan{
			Ports: map[uint16]*Port{}, Secrets: map[types.NamespacedName]bool{}, Services: map[types.NamespacedName]bool{}, Backends: map[Backend]bool{},
		},
	}
	b.ingresses()
	b.gateways()
	return b.plan
}

type builder struct {
	cfg  Config
	o    *Objects
	plan *Plan
}

func (b *builder) problem(object v1.ObjectReference, reason, message string) {
	b.plan.Problems = append(b.plan.Problems, Problem{object, reason, message})
}

// port returns a port to be listened on, for one more owner.
func (b *builder) port(number uint16, withTLS bool, owner v1.ObjectReference) *Port {
	p := b.plan.Ports[number]
	if p == nil {
		p = &Port{Number: number, TLS: withTLS}
		p.Certificates.Wildcard, p.Listeners.Wildcard = route.ManyLabels, route.ManyLabels
		b.plan.Ports[number] = p
	}
	if n := len(p.Owners); n == 0 || p.Owners[n-1] != owner { // an object's listeners come one after the other
		p.Owners = append(p.Owners, owner)
	}
	return p
}

// certificate reads a Secret and notes that it matters.
func (b *builder) certificate(namespace, name string) (*tls.Certificate, error) {
	b.plan.Secrets[types.NamespacedName{Namespace: namespace, Name: name}] = true
	return b.o.Certificate(namespace, name)
}

func (b *builder) service(namespace, name string) *v1.Service {
	b.plan.Services[types.NamespacedName{Namespace: namespace, Name: name}] = true
	return b.o.Service(namespace, name)
}

// use notes a backend.
func (b *builder) use(k Backend) Backend {
	b.plan.Backends[k] = true
	return k
}

// backendOf finds a port of a Service, by number or by name, and what is spoken there.
func backendOf(svc *v1.Service, match func(*v1.ServicePort) bool) (Backend, string) {
	if svc.Spec.Type == v1.ServiceTypeExternalName {
		return Backend{}, "Service " + svc.Name + " is an ExternalName: what is outside the cluster is not served"
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if (p.Protocol == "" || p.Protocol == v1.ProtocolTCP) && match(p) {
			return Backend{Namespace: svc.Namespace, Service: svc.Name, Port: p.Name, Protocol: protocolOf(p.AppProtocol)}, ""
		}
	}
	return Backend{}, "Service " + svc.Name + " has no such TCP port"
}

// protocolOf reads a port's appProtocol; the prefixed names are of the API (KEP-3726). WebSocket is HTTP/1.1.
func protocolOf(app *string) Protocol {
	if app == nil {
		return HTTP
	}
	switch *app {
	case "kubernetes.io/h2c", "h2c", "grpc":
		return H2C
	case "https", "kubernetes.io/wss", "wss":
		return HTTPS
	}
	return HTTP
}

// byAge sorts objects: the oldest first, then by namespace and name.
func byAge[T metav1.Object](list []T) []T {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b T) int {
		return cmp.Or(
			a.GetCreationTimestamp().Time.Compare(b.GetCreationTimestamp().Time),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()),
		)
	})
	return list
}

func rankOf(o metav1.Object, index int) route.Rank {
	return route.Rank{Created: o.GetCreationTimestamp().Time, Namespace: o.GetNamespace(), Name: o.GetName(), Index: index}
}

func reference(apiVersion, kind string, o metav1.Object) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}
