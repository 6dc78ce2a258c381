package proxy_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress/plan"
	"github.com/balsahq/balsa/overlay/ingress/proxy"
)

// The ports the tests' plans have; the real ones are the kernel's choice.
const httpPort, httpsPort = 80, 443

// world is a proxy on loopback with the objects it is lastWarned by.
type world struct {
	t     testing.TB
	proxy *proxy.Proxy
	o     *plan.Objects
	certs map[string]*tls.Certificate // by namespace/name of the Secret
	svcs  map[string]*v1.Service
	ends  map[string][]netip.AddrPort // by namespace/name of the Service
}

func newWorld(t testing.TB, change func(*proxy.Config)) *world {
	t.Helper()
	cfg := proxy.Config{
		HTTPSPort: httpsPort, Drain: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Listen: func(uint16) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
	}
	if change != nil {
		change(&cfg)
	}
	w := &world{t: t, proxy: proxy.New(cfg), certs: map[string]*tls.Certificate{}, svcs: map[string]*v1.Service{}, ends: map[string][]netip.AddrPort{}}
	w.o = &plan.Objects{
		Classes:        []*netv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: "balsa"}, Spec: netv1.IngressClassSpec{Controller: plan.IngressController}}},
		GatewayClasses: []*gw.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "balsa"}, Spec: gw.GatewayClassSpec{ControllerName: plan.GatewayController}}},
		Service:        func(ns, name string) *v1.Service { return w.svcs[ns+"/"+name] },
		Certificate: func(ns, name string) (*tls.Certificate, error) {
			if c := w.certs[ns+"/"+name]; c != nil {
				return c, nil
			}
			return nil, fmt.Errorf("there is no such Secret")
		},
	}
	t.Cleanup(w.proxy.Close)
	return w
}

// service makes a Service in the namespace default whose port 80 is served at these addresses.
func (w *world) service(name, appProtocol string, addrs ...string) {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}}}
	if appProtocol != "" {
		s.Spec.Ports[0].AppProtocol = &appProtocol
	}
	w.svcs["default/"+name] = s
	w.ends["default/"+name] = nil
	for _, a := range addrs {
		w.ends["default/"+name] = append(w.ends["default/"+name], netip.MustParseAddrPort(a))
	}
}

// ingress adds an Ingress of one rule.
func (w *world) ingress(name, host, path, service string, change func(*netv1.Ingress)) *netv1.Ingress {
	class, kind := "balsa", netv1.PathTypePrefix
	in := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: netv1.IngressSpec{
		IngressClassName: &class,
		Rules: []netv1.IngressRule{{Host: host, IngressRuleValue: netv1.IngressRuleValue{HTTP: &netv1.HTTPIngressRuleValue{Paths: []netv1.HTTPIngressPath{{
			Path: path, PathType: &kind, Backend: netv1.IngressBackend{Service: &netv1.IngressServiceBackend{Name: service, Port: netv1.ServiceBackendPort{Number: 80}}},
		}}}}}},
	}}
	if change != nil {
		change(in)
	}
	w.o.Ingresses = append(w.o.Ingresses, in)
	return in
}

// apply brings the objects into force.
func (w *world) apply() *plan.Plan {
	w.t.Helper()
	p := plan.Build(plan.Config{HTTPPort: httpPort, HTTPSPort: httpsPort}, w.o)
	for b := range p.Backends {
		w.proxy.SetEndpoints(b, w.ends[b.Namespace+"/"+b.Service])
	}
	for port, err := range w.proxy.Apply(p) {
		w.t.Fatalf("port %d: %v", port, err)
	}
	return p
}

func (w *world) addr(port uint16) string {
	w.t.Helper()
	a := w.proxy.Listening()[port]
	if a == nil {
		w.t.Fatalf("nothing listens for port %d", port)
	}
	return a.String()
}

// client speaks to the proxy whatever the URL's host is; roots verifies it.
func (w *world) client(roots *x509.CertPool, h2 bool) *http.Client {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			port := uint16(httpPort)
			if strings.HasSuffix(addr, ":443") {
				port = httpsPort
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", w.addr(port))
		},
		TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: new(http.Protocols), MaxIdleConnsPerHost: 64,
	}
	t.Protocols.SetHTTP1(!h2)
	t.Protocols.SetHTTP2(h2)
	t.Protocols.SetUnencryptedHTTP2(h2)
	w.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Timeout: time.Minute}
}

// get asks and returns the status and the body.
func (w *world) get(url string, change func(*http.Request)) (*http.Response, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	resp, err := w.client(nil, false).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(body)
}

// backend serves until the test ends and returns its address.
func backend(t testing.TB, h http.Handler) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

// authority signs certificates for names.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(serial int64, names ...string) *tls.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key, Leaf: leaf}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		select {
		case <-t.Context().Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}
