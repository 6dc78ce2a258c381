package ingress_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress"
	"github.com/balsahq/balsa/overlay/ingress/gatewayapi"
	"github.com/balsahq/balsa/overlay/ingress/plan"
)

const (
	ingresses = "networking.k8s.io/v1/ingresses"
	classes   = "networking.k8s.io/v1/ingressclasses"
	slicesOf  = "discovery.k8s.io/v1/endpointslices"
	gateways  = "gateway.networking.k8s.io/v1/"
)

func typesUID(s string) types.UID { return types.UID("uid-" + s) }
func ptr[T any](v T) *T           { return &v }

// served is a running Node and where it listens.
type served struct {
	*api
	mu    sync.Mutex
	ports map[uint16]string
	busy  map[uint16]bool
}

func (s *served) listen(port uint16) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[port] {
		return nil, errors.New("address already in use")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		s.ports[port] = l.Addr().String()
	}
	return l, err
}

func (s *served) addr(port uint16) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ports[port]
}

// run runs fn until the test ends.
func run(t testing.TB, fn func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(40 * time.Second):
			t.Error("Run does not end")
		}
	})
}

func newServed(t testing.TB) *served {
	t.Helper()
	s := &served{api: newAPI(t), ports: map[uint16]string{}, busy: map[uint16]bool{}}
	s.putObject(classes, &netv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "balsa"}, Spec: netv1.IngressClassSpec{Controller: plan.IngressController}})
	s.node("n1", nil)
	return s
}

func (s *served) serve() {
	s.t.Helper()
	node, err := ingress.NewNode(ingress.Config{
		NodeName: "n1", Client: s.client, Rest: s.config, Informers: informers.NewSharedInformerFactory(s.client, 0),
		HTTPPort: 80, HTTPSPort: 443, Listen: s.listen, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	run(s.t, node.Run)
}

// status runs a Status, whose Events come to the channel.
func (s *served) status() *record.FakeRecorder {
	s.t.Helper()
	factory, events := informers.NewSharedInformerFactory(s.client, 0), record.NewFakeRecorder(100)
	status, err := ingress.NewStatus(ingress.StatusConfig{
		Client: s.client, Rest: s.config, Secrets: s.client, Informers: factory, Events: events, HTTPPort: 80, HTTPSPort: 443, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	run(s.t, func(ctx context.Context) error {
		factory.Start(ctx.Done())
		defer factory.Shutdown()
		return status.Run(ctx)
	})
	return events
}

func (s *served) node(name string, labels map[string]string) {
	number := name[1:]
	s.putObject("/v1/nodes", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: v1.NodeStatus{
		Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2." + number}, {Type: v1.NodeHostName, Address: name}},
		Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
	}})
}

// backend serves text as a Service of the namespace default.
func (s *served) backend(name, text string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	s.t.Cleanup(server.Close)
	s.putObject("/v1/services", &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "http", Port: 80}}}})
	s.endpoints(name, server.Listener.Addr().String())
}

func (s *served) endpoints(name, addr string) {
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	s.putObject(slicesOf, &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discovery.LabelServiceName: name}},
		AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Name: ptr("http"), Port: ptr(int32(n))}},
		Endpoints: []discovery.Endpoint{{Addresses: []string{host}}, {Addresses: []string{"192.0.2.99"}, Conditions: discovery.EndpointConditions{Ready: ptr(false)}}},
	})
}

func (s *served) ingress(name, host, service, secret string) {
	in := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: netv1.IngressSpec{
		IngressClassName: ptr("balsa"),
		Rules: []netv1.IngressRule{{Host: host, IngressRuleValue: netv1.IngressRuleValue{HTTP: &netv1.HTTPIngressRuleValue{Paths: []netv1.HTTPIngressPath{{
			Path: "/", PathType: ptr(netv1.PathTypePrefix), Backend: netv1.IngressBackend{Service: &netv1.IngressServiceBackend{Name: service, Port: netv1.ServiceBackendPort{Name: "http"}}},
		}}}}}},
	}}
	if secret != "" {
		in.Spec.TLS = []netv1.IngressTLS{{Hosts: []string{host}, SecretName: secret}}
	}
	s.putObject(ingresses, in)
}

func (s *served) secret(name string, data map[string][]byte) {
	s.putObject("/v1/secrets", &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: v1.SecretTypeTLS, Data: data})
}

// pair is a self-signed certificate and its key.
func pair(t testing.TB, serial int64, name string) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		v1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		v1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}),
	}
}

// ask returns the answer's body, "" without one, and its status.
func (s *served) ask(port uint16, host string) (string, int) {
	addr := s.addr(port)
	if addr == "" {
		return "", 0
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", 0
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\nHost: "+host+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", 0
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body), resp.StatusCode
}

// shown is the serial number of the certificate for a name, 0 for none of ours.
func (s *served) shown(name string) int64 {
	conn, err := tls.Dial("tcp", s.addr(443), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		return 0
	}
	defer conn.Close()
	if n := conn.ConnectionState().PeerCertificates[0].SerialNumber; n.IsInt64() {
		return n.Int64()
	}
	return 0
}

func TestANodeServesWhatThereIs(t *testing.T) {
	s := newServed(t)
	s.backend("a", "from a")
	s.secret("unrelated", pair(t, 1, "x"))
	s.putObject(ingresses, &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "foreign"}, Spec: netv1.IngressSpec{
		IngressClassName: ptr("other"), TLS: []netv1.IngressTLS{{SecretName: "unrelated"}},
	}})
	s.serve()
	s.secret("cert", pair(t, 7, "a.example.com"))
	s.ingress("one", "a.example.com", "a", "cert")
	eventually(t, "the Ingress is served", func() bool { body, _ := s.ask(80, "a.example.com"); return body == "from a" })
	if n := s.shown("a.example.com"); n != 7 {
		t.Errorf("certificate %d: a client was shown another before it was read", n)
	}
	s.look(func() {
		for _, q := range s.asked {
			if strings.Contains(q, "secrets") && q != "/api/v1/namespaces/default/secrets?metadata.name=cert" {
				t.Errorf("asked for %s", q)
			}
		}
	})
	s.secret("cert", pair(t, 8, "a.example.com"))
	eventually(t, "the new certificate", func() bool { return s.shown("a.example.com") == 8 })
	s.secret("cert", map[string][]byte{v1.TLSCertKey: []byte("nonsense")})
	eventually(t, "no certificate of the broken Secret", func() bool { n := s.shown("a.example.com"); return n != 8 && n != 7 })
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from elsewhere") }))
	t.Cleanup(other.Close)
	s.endpoints("a", other.Listener.Addr().String())
	eventually(t, "the new endpoint", func() bool { body, _ := s.ask(80, "a.example.com"); return body == "from elsewhere" })
	s.remove(slicesOf, "default/a")
	eventually(t, "no endpoint", func() bool { _, status := s.ask(80, "a.example.com"); return status == 503 })
	s.remove(ingresses, "default/one")
	eventually(t, "the ports close", func() bool { _, status := s.ask(80, "a.example.com"); return status == 0 })
}

func TestNothingListensWithoutAnIngressOfOurs(t *testing.T) {
	s := newServed(t)
	s.backend("a", "from a")
	s.serve()
	s.putObject(ingresses, &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "foreign"}, Spec: netv1.IngressSpec{IngressClassName: ptr("other")}})
	s.putObject(ingresses, &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "classless"}})
	s.ingress("one", "a.example.com", "a", "") // the proof that the others have been seen
	eventually(t, "the Ingress is served", func() bool { body, _ := s.ask(80, "a.example.com"); return body == "from a" })
	s.look(func() {
		for _, q := range s.asked {
			t.Errorf("asked for %s", q)
		}
	})
}

func TestOnlyChosenNodesServe(t *testing.T) {
	s := newServed(t)
	s.backend("a", "from a")
	s.ingress("one", "a.example.com", "a", "")
	s.node("n2", map[string]string{ingress.Label: "true"})
	s.serve()
	is := func(want int) func() bool {
		return func() bool { _, status := s.ask(80, "a.example.com"); return status == want }
	}
	s.node("n1", map[string]string{ingress.Label: "true"})
	eventually(t, "served when labelled", is(200))
	s.node("n1", nil)
	eventually(t, "not served when another node is chosen", is(0))
	s.remove("/v1/nodes", "/n2")
	eventually(t, "served when nobody is chosen", is(200))
	s.node("n1", map[string]string{ingress.Label: "false"})
	eventually(t, "not served when taken out", is(0))
}

func TestAPortOfSomebodyElseIsSaid(t *testing.T) {
	s := newServed(t)
	s.busy[80] = true
	s.backend("a", "from a")
	s.ingress("one", "a.example.com", "a", "")
	s.serve()
	eventually(t, "an Event", func() (found bool) {
		s.look(func() {
			found = slices.ContainsFunc(s.events, func(e string) bool {
				return strings.HasPrefix(e, "PortUnavailable one: node n1 cannot listen on port 80")
			})
		})
		return found
	})
	s.mu.Lock()
	s.busy[80] = false
	s.mu.Unlock()
	eventually(t, "the port is tried again", func() bool { body, _ := s.ask(80, "a.example.com"); return body == "from a" })
}

func TestGatewaysAreServedOnceDefined(t *testing.T) {
	s := newServed(t)
	s.backend("a", "from a")
	s.serve()
	for _, kind := range []string{"gatewayclasses", "gateways", "httproutes", "grpcroutes", "referencegrants"} {
		s.define(kind)
	}
	s.putObject(gateways+"gatewayclasses", &gw.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "balsa"}, Spec: gw.GatewayClassSpec{ControllerName: plan.GatewayController}})
	s.putObject(gateways+"gateways", &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gate"}, Spec: gw.GatewaySpec{
		GatewayClassName: "balsa", Listeners: []gw.Listener{{Name: "http", Port: 80, Protocol: gw.HTTPProtocolType}},
	}})
	s.putObject(gateways+"httproutes", routeTo("a"))
	eventually(t, "the route is served", func() bool { body, _ := s.ask(80, "any"); return body == "from a" })
	s.remove("apiextensions.k8s.io/v1/customresourcedefinitions", "/gateways.gateway.networking.k8s.io")
	eventually(t, "the ports close with the definition", func() bool { _, status := s.ask(80, "any"); return status == 0 })
}

func routeTo(service string) *gw.HTTPRoute {
	return &gw.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "route"}, Spec: gw.HTTPRouteSpec{
		CommonRouteSpec: gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: "gate"}}},
		Rules: []gw.HTTPRouteRule{{BackendRefs: []gw.HTTPBackendRef{{BackendRef: gw.BackendRef{
			BackendObjectReference: gw.BackendObjectReference{Name: gw.ObjectName(service), Port: ptr(gw.PortNumber(80))},
		}}}}},
	}}
}

func TestStatusSaysWhereAndWhatIsWrong(t *testing.T) {
	s := newServed(t)
	s.node("n2", nil)
	s.ingress("one", "a.example.com", "missing", "absent")
	events := s.status()
	addressesOf := func() (out []string) {
		var in netv1.Ingress
		s.get(ingresses, "default/one", &in)
		for _, i := range in.Status.LoadBalancer.Ingress {
			out = append(out, i.IP)
		}
		return out
	}
	eventually(t, "addresses", func() bool { return slices.Equal(addressesOf(), []string{"192.0.2.1", "192.0.2.2"}) })
	var said []string
	for range 2 {
		said = append(said, <-events.Events)
	}
	slices.Sort(said)
	if !strings.HasPrefix(said[0], "Warning Backend there is no Service default/missing") || !strings.HasPrefix(said[1], "Warning Certificate Secret absent: there is no such Secret") {
		t.Errorf("events: %q", said)
	}
	s.node("n2", map[string]string{ingress.Label: "true"})
	eventually(t, "the chosen node's address", func() bool { return slices.Equal(addressesOf(), []string{"192.0.2.2"}) })
	s.remove("/v1/nodes", "/n2")
	eventually(t, "the other's address", func() bool { return slices.Equal(addressesOf(), []string{"192.0.2.1"}) })
	s.look(func() {
		if s.writes != 3 {
			t.Errorf("%d writes for three changes", s.writes)
		}
	})
	select {
	case e := <-events.Events:
		t.Errorf("said again: %s", e)
	default:
	}
}

func TestStatusOfGatewaysAndRoutes(t *testing.T) {
	s := newServed(t)
	s.backend("a", "from a")
	for _, kind := range []string{"gatewayclasses", "gateways", "httproutes", "grpcroutes", "referencegrants"} {
		s.define(kind)
	}
	s.putObject(gateways+"gatewayclasses", &gw.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "balsa"}, Spec: gw.GatewayClassSpec{ControllerName: plan.GatewayController}})
	s.putObject(gateways+"gateways", &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gate"}, Spec: gw.GatewaySpec{
		GatewayClassName: "balsa", Listeners: []gw.Listener{
			{Name: "http", Port: 80, Protocol: gw.HTTPProtocolType},
			{Name: "https", Port: 443, Protocol: gw.HTTPSProtocolType, TLS: &gw.ListenerTLSConfig{CertificateRefs: []gw.SecretObjectReference{{Name: "absent"}}}},
		},
	}})
	r := routeTo("a")
	r.Status.Parents = []gw.RouteParentStatus{{ParentRef: gw.ParentReference{Name: "theirs"}, ControllerName: "example.com/other", Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "Accepted"}}}}
	s.putObject(gateways+"httproutes", r)
	s.status()
	var g gw.Gateway
	eventually(t, "a status of the Gateway", func() bool {
		return s.get(gateways+"gateways", "default/gate", &g) && len(g.Status.Listeners) == 2 && len(g.Status.Addresses) == 1
	})
	state := func(list []metav1.Condition, kind string) string {
		for _, c := range list {
			if c.Type == kind {
				return string(c.Status) + " " + c.Reason
			}
		}
		return ""
	}
	for _, c := range []struct{ got, want string }{
		{state(g.Status.Conditions, "Accepted"), "True ListenersNotValid"}, {state(g.Status.Conditions, "Programmed"), "True Programmed"},
		{state(g.Status.Listeners[0].Conditions, "Programmed"), "True Programmed"}, {state(g.Status.Listeners[0].Conditions, "ResolvedRefs"), "True ResolvedRefs"},
		{state(g.Status.Listeners[1].Conditions, "Programmed"), "False Invalid"}, {state(g.Status.Listeners[1].Conditions, "ResolvedRefs"), "False InvalidCertificateRef"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if n := g.Status.Listeners[0].AttachedRoutes; n != 1 {
		t.Errorf("%d attached routes", n)
	}
	var route gw.HTTPRoute
	parent := func(want string) func() bool {
		return func() bool {
			return s.get(gateways+"httproutes", "default/route", &route) && len(route.Status.Parents) == 2 &&
				route.Status.Parents[0].ControllerName == "example.com/other" && state(route.Status.Parents[1].Conditions, "ResolvedRefs") == want
		}
	}
	eventually(t, "the route is resolved", parent("True ResolvedRefs"))
	s.remove("/v1/services", "default/a")
	eventually(t, "the route is not resolved", parent("False BackendNotFound"))
	s.putObject(gateways+"httproutes", &gw.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "route"}, Status: route.Status})
	eventually(t, "what is no longer ours goes", func() bool {
		return s.get(gateways+"httproutes", "default/route", &route) && len(route.Status.Parents) == 1
	})
}

func TestTheGatewayAPIIsInstalled(t *testing.T) {
	all, err := gatewayapi.Definitions()
	if err != nil || len(all) != 5 {
		t.Fatalf("%d definitions, %v", len(all), err)
	}
	s := newServed(t)
	s.look(func() { s.objects[gateways+"gatewayclasses"] = map[string]*unstructuredObject{} })
	for range 2 { // again is safe
		if err := gatewayapi.Install(t.Context(), s.config); err != nil {
			t.Fatal(err)
		}
	}
	s.look(func() {
		if n := len(s.objects["apiextensions.k8s.io/v1/customresourcedefinitions"]); n != 5 || s.objects[gateways+"gatewayclasses"]["/balsa"] == nil {
			t.Errorf("%d definitions, classes %v", n, s.objects[gateways+"gatewayclasses"])
		}
	})
}
