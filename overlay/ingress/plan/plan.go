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

// The controller names of the IngressClasses and GatewayClasses that Balsa serves.
const (
	IngressController = "balsa.dev/ingress"
	GatewayController = "balsa.dev/gateway"
)

// ErrPending is the error of Objects.Certificate for a Secret that has not been read yet; no status mentions it.
var ErrPending = errors.New("the Secret is being read")

// Objects is the input of a plan. The functions must answer from memory, and must not change their answers during one
// Build.
type Objects struct {
	Classes   []*netv1.IngressClass
	Ingresses []*netv1.Ingress
	// Service returns nil when there is none.
	Service func(namespace, name string) *v1.Service
	// Certificate reads a Secret of type kubernetes.io/tls. Its error appears in statuses and Events, so it must not quote
	// the Secret.
	Certificate func(namespace, name string) (*tls.Certificate, error)
	// NamespaceLabels returns a namespace's labels, for listeners that select namespaces by label; nil if Gateways are not
	// defined.
	NamespaceLabels func(name string) (map[string]string, bool)

	GatewayClasses []*gw.GatewayClass
	Gateways       []*gw.Gateway
	HTTPRoutes     []*gw.HTTPRoute
	GRPCRoutes     []*gw.GRPCRoute
	Grants         []*gw.ReferenceGrant
}

// Config has the ports of Ingresses, which are also the ports of Gateways' listeners with port 80 and 443.
type Config struct{ HTTPPort, HTTPSPort uint16 }

// Protocol is the protocol to a backend.
type Protocol string

// The protocols.
const (
	HTTP  Protocol = "http"  // HTTP/1.1
	H2C   Protocol = "h2c"   // HTTP/2 without TLS, as gRPC uses it
	HTTPS Protocol = "https" // TLS, with HTTP/2 if the backend supports it; the backend's certificate is not verified
)

// Backend is a port of a Service, by the name that it has in EndpointSlices. It is comparable.
type Backend struct {
	Namespace, Service string
	Port               string // the port's name; "" for a port without a name
	Protocol           Protocol
}

// Target is what happens to the requests of a rule.
type Target struct {
	Owner    v1.ObjectReference
	Backends []Weighted // chosen among by weight
	// Broken is the reason for which the rule's requests are answered with status 500; "" if they are forwarded.
	Broken     string
	Redirect   *Redirect
	ForceHTTPS bool // requests without TLS are redirected to https
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
	Weight   int32  // share of the requests, relative to the sum of weights; 0: no requests
	Broken   string // why the backend cannot be used; its share of requests is answered with status 500, or 503 for an Ingress
	Request  Headers
	Response Headers
}

// Mirror is a backend that gets a copy of Numerator in Denominator requests; its responses are discarded.
type Mirror struct {
	Backend                Backend
	Numerator, Denominator int32
}

// Headers are changes of headers, applied in this order. Names are canonical.
type Headers struct {
	Set, Add []Header
	Remove   []string
}

// Header is one header line.
type Header struct{ Name, Value string }

// Redirect is an HTTP redirect. An empty field keeps the value of the request.
type Redirect struct {
	Scheme, Host string
	Port         int32
	Path         *PathChange
	Status       int
}

// Rewrite changes the host and path of the request to the backend.
type Rewrite struct {
	Host string
	Path *PathChange
}

// PathChange replaces the whole path, or the part of it that the rule's prefix matched.
type PathChange struct {
	Prefix bool
	Value  string
}

// Listener is a port and a hostname, which routes of Gateways share.
type Listener struct {
	Port  int32 // as in the Gateway's spec
	Rules *route.Table[*Target]
}

// Port is one TCP port to listen on.
type Port struct {
	Number uint16
	TLS    bool
	// Certificates are chosen by the server name that the client sends. Without a match the proxy uses a self-signed
	// certificate.
	Certificates route.HostMap[[]*tls.Certificate]
	Ingress      *route.Table[*Target]
	Listeners    route.HostMap[*Listener]
	// Owners are the objects that need the port.
	Owners []v1.ObjectReference
}

// Problem is a fault of an object, for an Event.
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

// RouteState is the status that a route should have. Parents has entries for this controller's Gateways only.
type RouteState struct {
	Kind            string // HTTPRoute or GRPCRoute
	Namespace, Name string
	Generation      int64
	Parents         []gw.RouteParentStatus
}

// Plan is the result of Build.
type Plan struct {
	Ports    map[uint16]*Port
	Secrets  map[types.NamespacedName]bool // the Secrets with certificates; the namespace of each allows its use
	Services map[types.NamespacedName]bool // the Services that rules name, whether they exist or not
	Backends map[Backend]bool
	Problems []Problem

	Ingresses []*netv1.Ingress   // of this controller's classes
	Classes   []*gw.GatewayClass // of this controller
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

// port returns the plan's port of that number, which it adds if needed, and records the owner.
func (b *builder) port(number uint16, withTLS bool, owner v1.ObjectReference) *Port {
	p := b.plan.Ports[number]
	if p == nil {
		p = &Port{Number: number, TLS: withTLS}
		p.Certificates.Wildcard, p.Listeners.Wildcard = route.ManyLabels, route.ManyLabels
		b.plan.Ports[number] = p
	}
	if n := len(p.Owners); n == 0 || p.Owners[n-1] != owner { // the listeners of one object are adjacent, so comparing with the last owner is enough
		p.Owners = append(p.Owners, owner)
	}
	return p
}

// certificate reads a Secret and adds it to the plan's Secrets.
func (b *builder) certificate(namespace, name string) (*tls.Certificate, error) {
	b.plan.Secrets[types.NamespacedName{Namespace: namespace, Name: name}] = true
	return b.o.Certificate(namespace, name)
}

func (b *builder) service(namespace, name string) *v1.Service {
	b.plan.Services[types.NamespacedName{Namespace: namespace, Name: name}] = true
	return b.o.Service(namespace, name)
}

// addBackend adds a backend to the plan.
func (b *builder) addBackend(k Backend) Backend {
	b.plan.Backends[k] = true
	return k
}

// backendOf returns the port of a Service that matches, with its protocol; the string is the reason if there is none.
func backendOf(svc *v1.Service, match func(*v1.ServicePort) bool) (Backend, string) {
	if svc.Spec.Type == v1.ServiceTypeExternalName {
		return Backend{}, "Service " + svc.Name + " is an ExternalName: hosts outside the cluster cannot be backends"
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

// byAge sorts objects by age, the oldest first, then by namespace and name.
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
