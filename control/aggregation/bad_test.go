package aggregation_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/controltest"
)

// stranger is a server that answers what the test sets for a path, and empty discovery for the other paths.
type stranger struct {
	*httptest.Server
	port  int
	asked atomic.Int64

	mu      sync.Mutex
	answers map[string]http.HandlerFunc
}

func newStranger(t *testing.T) *stranger {
	s := &stranger{answers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		s.mu.Lock()
		h := s.answers[r.URL.Path]
		s.mu.Unlock()
		if h == nil {
			h = says("application/json", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"odd.example.com/v1","resources":[]}`)
		}
		h(w, r)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // failed handshakes are part of the test
	s.StartTLS()
	t.Cleanup(s.Close)
	addr, ok := s.Listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	s.port = addr.Port
	return s
}

func (s *stranger) answer(path string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path] = h
}

func says(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body) // the client may have gone
	}
}

// endless writes until the client leaves, and counts the bytes.
func endless(wrote *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		chunk := []byte(`{"swagger":"2.0",` + strings.Repeat(" ", 1<<16))
		for r.Context().Err() == nil && wrote.Load() < 1<<31 {
			n, err := w.Write(chunk)
			if wrote.Add(int64(n)); err != nil {
				return
			}
		}
	}
}

var odd = schema.GroupVersion{Group: "odd.example.com", Version: "v1"}

func (c *cluster) ask(path string) (int, string) {
	return c.Ask(c.t, c.HTTP(c.certificate()), "GET", path, nil, nil)
}

func TestAServerThatCannotBeReachedIsSaidSo(t *testing.T) {
	c, s := newCluster(t), newStranger(t)
	ctx := t.Context()
	name := "v1.odd.example.com"
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	c.register(apiService(odd, "odd", ca))
	unavailable := func(reason string) {
		t.Helper()
		c.condition(name, apiregistrationv1.ConditionFalse, reason)
		controltest.Await(t, "503 because of "+reason, func() bool {
			code, body := c.ask("/apis/odd.example.com/v1/things")
			return code == http.StatusServiceUnavailable && strings.Contains(body, reason)
		})
	}
	unavailable("ServiceNotFound")
	_, err := c.core.CoreV1().Services("kube-system").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{})
	c.must(err)
	unavailable("EndpointsNotFound")
	c.endpoint("odd", s.port)
	unavailable("FailedDiscoveryCheck") // the certificate is for another name
	if s.asked.Load() != 0 {
		t.Error("a server whose certificate is wrong was asked")
	}
	trusted := func(change func(*apiregistrationv1.APIServiceSpec)) {
		t.Helper()
		controltest.Await(t, "the APIService is changed", func() bool {
			have, err := c.registry.ApiregistrationV1().APIServices().Get(ctx, name, metav1.GetOptions{})
			c.must(err)
			change(&have.Spec)
			_, err = c.registry.ApiregistrationV1().APIServices().Update(ctx, have, metav1.UpdateOptions{})
			return err == nil
		})
	}
	trusted(func(s *apiregistrationv1.APIServiceSpec) { s.CABundle, s.InsecureSkipTLSVerify = nil, true })
	c.condition(name, apiregistrationv1.ConditionTrue, "Passed")
	controltest.Await(t, "it is asked", func() bool { code, _ := c.ask("/apis/odd.example.com/v1/things"); return code == 200 })
	slices, err := c.core.DiscoveryV1().EndpointSlices("kube-system").Get(ctx, "odd", metav1.GetOptions{})
	c.must(err)
	slices.Endpoints = nil
	_, err = c.core.DiscoveryV1().EndpointSlices("kube-system").Update(ctx, slices, metav1.UpdateOptions{})
	c.must(err)
	unavailable("MissingEndpoints")
	trusted(func(s *apiregistrationv1.APIServiceSpec) {
		s.CABundle, s.InsecureSkipTLSVerify = []byte("no PEM"), false
	})
	controltest.Await(t, "the bad bundle is named", func() bool {
		code, body := c.ask("/apis/odd.example.com/v1/things")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "caBundle")
	})
	trusted(func(s *apiregistrationv1.APIServiceSpec) { s.CABundle, s.Service = nil, nil })
	c.condition(name, apiregistrationv1.ConditionTrue, "Local")
	controltest.Await(t, "nobody serves it", func() bool { code, _ := c.ask("/apis/odd.example.com/v1/things"); return code == 404 })
}

// strange starts a cluster with a stranger that is available.
func strange(t *testing.T) (*cluster, *stranger) {
	c, s := newCluster(t), newStranger(t)
	c.service("odd", s.port)
	c.register(apiService(odd, "odd", nil))
	c.condition("v1.odd.example.com", apiregistrationv1.ConditionTrue, "Passed")
	controltest.Await(t, "it is asked", func() bool { code, _ := c.ask("/apis/odd.example.com/v1/things"); return code == 200 })
	return c, s
}

func TestAServerLearnsWhoAsksAndStreamsPass(t *testing.T) {
	c, s := strange(t)
	s.answer("/apis/odd.example.com/v1/echo", func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != "front-proxy-client" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		conn, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.WriteMessage(websocket.TextMessage, []byte(fmt.Sprint(r.Header["X-Remote-User"], r.Header["X-Remote-Group"], r.Header["Authorization"])))
		for {
			kind, data, err := conn.ReadMessage()
			if err != nil || conn.WriteMessage(kind, data) != nil {
				return
			}
		}
	})
	http, ok := c.HTTP(c.certificate()).Transport.(*http.Transport)
	if !ok {
		t.Fatal("no transport")
	}
	dialer := &websocket.Dialer{TLSClientConfig: http.TLSClientConfig, HandshakeTimeout: 10 * time.Second}
	conn, answer, err := dialer.Dial("wss://"+c.Address+"/apis/odd.example.com/v1/echo", map[string][]string{"X-Remote-User": {"somebody else"}})
	if err != nil {
		t.Fatalf("upgrade: %v %v", err, answer)
	}
	defer conn.Close()
	defer answer.Body.Close()
	_, data, err := conn.ReadMessage()
	c.must(err)
	if who := string(data); who != "[kubernetes-admin] [system:masters system:authenticated] []" {
		t.Errorf("the server sees %s", who)
	}
	c.must(conn.WriteMessage(websocket.TextMessage, []byte("hello")))
	if _, data, err = conn.ReadMessage(); err != nil || string(data) != "hello" {
		t.Errorf("echo: %s, %v", data, err)
	}
}

func TestWhatAServerSaysOfItselfIsBounded(t *testing.T) {
	c, s := strange(t)
	var discovery, v2, v3 atomic.Int64
	s.answer("/apis", endless(&discovery))
	s.answer("/openapi/v2", endless(&v2))
	s.answer("/openapi/v3", endless(&v3))
	if code, body := c.ask("/openapi/v2"); code != 200 || !strings.Contains(body, "/api/v1/pods") {
		t.Errorf("OpenAPI v2: %d, %d bytes", code, len(body))
	}
	if code, body := c.ask("/openapi/v3"); code != 200 || !strings.Contains(body, "apis/apps/v1") || strings.Contains(body, "odd.example.com") {
		t.Errorf("OpenAPI v3: %d %s", code, body)
	}
	// A change of the APIService has its discovery read again.
	controltest.Await(t, "the APIService is touched", func() bool {
		have, err := c.registry.ApiregistrationV1().APIServices().Get(t.Context(), "v1.odd.example.com", metav1.GetOptions{})
		c.must(err)
		have.Spec.VersionPriority++
		_, err = c.registry.ApiregistrationV1().APIServices().Update(t.Context(), have, metav1.UpdateOptions{})
		return err == nil
	})
	controltest.Await(t, "it is stale", func() bool {
		_, body := c.Ask(t, c.HTTP(c.certificate()), "GET", "/apis", http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}}, nil)
		return discovery.Load() > 0 && strings.Contains(body, `"version":"v1","freshness":"Stale"`)
	})
	for what, wrote := range map[string]*atomic.Int64{"discovery": &discovery, "v2": &v2, "v3": &v3} {
		if n := wrote.Load(); n == 0 || n > 200<<20 { // some of it lies in the kernel's buffers, and discovery may have been read a few times
			t.Errorf("%s: %d MiB were taken", what, n>>20)
		}
	}
}

func TestAServerThatHangsHoldsNobodyElseUp(t *testing.T) {
	c, s := strange(t)
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, path := range []string{"/apis", "/openapi/v2", "/openapi/v3", "/apis/odd.example.com/v1"} {
		s.answer(path, hang)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if code, _ := c.ask("/apis/odd.example.com/v1"); code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout {
				t.Errorf("discovery of a server that hangs: %d", code)
			}
		})
	}
	wg.Go(func() {
		if code, body := c.ask("/openapi/v2"); code != 200 || !strings.Contains(body, "/api/v1/pods") {
			t.Errorf("OpenAPI v2: %d, %d bytes", code, len(body))
		}
	})
	if _, err := c.core.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if code, _ := c.ask("/apis"); code != 200 {
		t.Errorf("groups: %d", code)
	}
}

func TestAWayThatLeadsBackIsNotTaken(t *testing.T) {
	server := new(atomic.Pointer[string])
	s := controltest.Start(t, func(cfg *control.Config) {
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if back := server.Load(); back != nil {
				address = *back
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	})
	server.Store(&s.Address)
	c := clusterOf(t, s)
	c.service("odd", 443)
	c.register(apiService(odd, "odd", nil))
	c.condition("v1.odd.example.com", apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	controltest.Await(t, "the group is served, by nobody", func() bool { // the condition is set by another goroutine than the one that changes the routes
		code, body := c.ask("/apis/odd.example.com/v1")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "508")
	})
	proxy, err := c.PKI.FrontProxyClient().GetClientCertificate(nil)
	c.must(err)
	for _, path := range []string{"/apis/odd.example.com/v1/things", "/apis", "/openapi/v2", "/openapi/v3"} {
		if code, body := s.Ask(t, s.HTTP(proxy), "GET", path, http.Header{"X-Remote-User": {"a"}, "X-Remote-Group": {"system:masters"}}, nil); code != http.StatusLoopDetected {
			t.Errorf("%s: %d %.300s", path, code, body)
		}
	}
}

func TestNothingIsLeftOfServersThatAreGone(t *testing.T) {
	c := newCluster(t)
	s := newStranger(t)
	c.service("odd", s.port)
	ctx := t.Context()
	services := c.registry.ApiregistrationV1().APIServices()
	round := func() {
		c.register(apiService(odd, "odd", nil))
		c.condition("v1.odd.example.com", apiregistrationv1.ConditionTrue, "Passed")
		c.must(services.Delete(ctx, "v1.odd.example.com", metav1.DeleteOptions{}))
		controltest.Await(t, "it is gone", func() bool {
			code, _ := c.ask("/apis/odd.example.com/v1/things")
			return code == http.StatusNotFound
		})
	}
	round()
	settled := func() int {
		last, same := 0, 0
		controltest.Await(t, "goroutines come and go no more", func() bool {
			n := runtime.NumGoroutine()
			if n != last {
				last, same = n, 0
			}
			same++
			return same > 25
		})
		return last
	}
	before := settled()
	for range 5 {
		round()
	}
	controltest.Await(t, "goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+5 })
	asked := s.asked.Load()
	settled()
	if n := s.asked.Load(); n != asked {
		t.Errorf("a server that no APIService names was asked %d times", n-asked)
	}
}

func TestBadAPIServicesAreRefused(t *testing.T) {
	c := newCluster(t)
	services := c.registry.ApiregistrationV1().APIServices()
	for what, change := range map[string]func(*apiregistrationv1.APIService){
		"another name":         func(s *apiregistrationv1.APIService) { s.Name = "v2.odd.example.com" },
		"no priority":          func(s *apiregistrationv1.APIService) { s.Spec.GroupPriorityMinimum = 0 },
		"too high a priority":  func(s *apiregistrationv1.APIService) { s.Spec.GroupPriorityMinimum = 20001 },
		"no namespace":         func(s *apiregistrationv1.APIService) { s.Spec.Service.Namespace = "" },
		"a port out of range":  func(s *apiregistrationv1.APIService) { p := int32(70000); s.Spec.Service.Port = &p },
		"a bundle and no need": func(s *apiregistrationv1.APIService) { s.Spec.CABundle = bytes.Repeat([]byte("x"), 10) },
		"a local one with CA":  func(s *apiregistrationv1.APIService) { s.Spec.Service, s.Spec.CABundle = nil, []byte("x") },
	} {
		s := apiService(odd, "odd", nil)
		change(s)
		if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
