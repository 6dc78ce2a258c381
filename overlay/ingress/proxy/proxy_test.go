package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	netv1 "k8s.io/api/networking/v1"

	"github.com/balsahq/balsa/overlay/ingress/plan"
)

func TestRequestsGoWhereTheirRuleLeads(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, says("a")))
	w.service("b", "", backend(t, says("b")))
	w.service("none", "")
	w.ingress("one", "a.example.com", "/", "a", nil)
	w.ingress("two", "*.example.com", "/b", "b", nil)
	w.ingress("three", "none.example.com", "/", "none", nil)
	w.ingress("four", "missing.example.com", "/", "missing", nil)
	w.ingress("five", "foreign.example.com", "/", "a", func(in *netv1.Ingress) { *in.Spec.IngressClassName = "other" })
	p := w.apply()
	for _, c := range []struct {
		url    string
		status int
		body   string
	}{
		{"http://a.example.com/x?y", 200, "a"}, {"http://A.example.COM:80/", 200, "a"}, {"http://a.example.com./", 200, "a"},
		{"http://x.example.com/b/c", 200, "b"}, {"http://x.example.com/", 404, ""}, {"http://x.y.example.com/b", 404, ""},
		{"http://none.example.com/", 503, ""}, {"http://missing.example.com/", 503, ""}, {"http://foreign.example.com/", 404, ""},
		{"http://a.example.com/a/%2e%2e/b", 400, ""}, {"http://other.org/", 404, ""},
	} {
		resp, body := w.get(c.url, nil)
		if resp.StatusCode != c.status || c.status == 200 && body != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.url, resp.StatusCode, body, c.status, c.body)
		}
	}
	if len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Message, "default/missing") {
		t.Errorf("problems: %v", p.Problems)
	}
}

func TestDefaultBackendTakesTheRest(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, says("a")))
	w.service("rest", "", backend(t, says("rest")))
	w.service("everything", "", backend(t, says("everything")))
	toService := func(name string) *netv1.IngressBackend {
		return &netv1.IngressBackend{Service: &netv1.IngressServiceBackend{Name: name, Port: netv1.ServiceBackendPort{Number: 80}}}
	}
	w.ingress("one", "a.example.com", "/a", "a", func(in *netv1.Ingress) { in.Spec.DefaultBackend = toService("rest") })
	w.ingress("two", "", "", "", func(in *netv1.Ingress) { in.Spec.Rules, in.Spec.DefaultBackend = nil, toService("everything") })
	w.apply()
	for url, want := range map[string]string{
		"http://a.example.com/a": "a", "http://a.example.com/b": "rest", "http://b.example.com/": "everything",
	} {
		if _, body := w.get(url, nil); body != want {
			t.Errorf("%s: %q, want %q", url, body, want)
		}
	}
}

func TestBackendsHearOfTheClient(t *testing.T) {
	w := newWorld(t, nil)
	got := make(chan *http.Request, 1)
	w.service("a", "", backend(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r })))
	w.ingress("one", "a.example.com", "/api", "a", func(in *netv1.Ingress) {
		in.Annotations = map[string]string{plan.AnnotationRewritePrefix: "/v1"}
	})
	w.apply()
	w.get("http://a.example.com/api/x%2Fy?q=1;2&%zz", func(r *http.Request) {
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		r.Header.Set("X-Forwarded-Proto", "https")
		r.Header.Set("X-Real-Ip", "192.0.2.1")
		r.Header.Set("Connection", "X-Private")
		r.Header.Set("X-Private", "1")
		r.Header.Set("Proxy-Authorization", "secret")
	})
	r := <-got
	if r.Host != "a.example.com" || r.RequestURI != "/v1/x%2Fy?q=1;2&%zz" {
		t.Errorf("host %s, URI %s", r.Host, r.RequestURI)
	}
	for name, want := range map[string]string{
		"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "a.example.com",
		"X-Forwarded-Port": "80", "X-Private": "", "Proxy-Authorization": "", "Connection": "",
	} {
		if v := strings.Join(r.Header.Values(name), ","); v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
}

func TestForceHTTPSRedirects(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, says("a")))
	w.ingress("one", "a.example.com", "/", "a", func(in *netv1.Ingress) {
		in.Annotations = map[string]string{plan.AnnotationForceHTTPS: "true"}
	})
	w.apply()
	resp, _ := w.get("http://a.example.com/x?y=z", nil)
	if at := resp.Header.Get("Location"); resp.StatusCode != http.StatusPermanentRedirect || at != "https://a.example.com/x?y=z" {
		t.Errorf("%d to %q", resp.StatusCode, at)
	}
}

// Certificates change a hundred times while requests are made over kept and over new connections.
func TestReloadsUnderLoadLoseNothing(t *testing.T) {
	w, ca := newWorld(t, nil), newAuthority(t)
	names := []string{"a.example.com", "b.example.com", "x.wild.example.com"}
	for i, n := range []string{"a", "b", "wild"} {
		w.service(n, "", backend(t, says(n)))
		host := []string{names[0], names[1], "*.wild.example.com"}[i]
		w.ingress(n, host, "/", n, func(in *netv1.Ingress) { in.Spec.TLS = []netv1.IngressTLS{{Hosts: []string{host}, SecretName: n}} })
		w.certs["default/"+n] = ca.sign(1, host)
	}
	w.apply()
	var done, failed, versions atomic.Int64
	var mu sync.Mutex
	seen := map[string]bool{}
	var load sync.WaitGroup
	for i := range 8 {
		client := w.client(ca.pool, i%2 == 1)
		load.Go(func() {
			for n := 0; versions.Load() < 100 || n < 30; n++ {
				name := names[n%len(names)]
				resp, err := client.Get("https://" + name + "/")
				if err != nil {
					failed.Add(1)
					t.Errorf("%s: %v", name, err)
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					failed.Add(1)
					t.Errorf("%s: %d %v", name, resp.StatusCode, err)
					return
				}
				mu.Lock()
				seen[resp.TLS.PeerCertificates[0].SerialNumber.String()] = true
				mu.Unlock()
				if done.Add(1); n%10 == 9 {
					client.CloseIdleConnections()
				}
			}
		})
	}
	for v := int64(2); v <= 101; v++ {
		before := done.Load()
		for _, n := range []string{"a", "b", "wild"} {
			w.certs["default/"+n] = ca.sign(v, map[string]string{"a": names[0], "b": names[1], "wild": "*.wild.example.com"}[n])
		}
		w.apply()
		eventually(t, "requests after a reload", func() bool { return done.Load() >= before+3 || failed.Load() > 0 })
		versions.Add(1)
	}
	load.Wait()
	if failed.Load() > 0 || len(seen) < 10 {
		t.Errorf("%d of %d requests failed; %d certificates were seen", failed.Load(), done.Load(), len(seen))
	}
	t.Logf("%d requests, %d certificates", done.Load(), len(seen))
}

func TestNamesWithoutCertificateGetASelfSignedOne(t *testing.T) {
	w := newWorld(t, nil)
	w.service("a", "", backend(t, says("a")))
	w.ingress("one", "a.example.com", "/", "a", func(in *netv1.Ingress) { in.Spec.TLS = []netv1.IngressTLS{{SecretName: "broken"}} })
	p := w.apply()
	conn, err := tls.Dial("tcp", w.addr(httpsPort), &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if cn := conn.ConnectionState().PeerCertificates[0].Subject.CommonName; !strings.HasPrefix(cn, "Balsa ingress") {
		t.Errorf("certificate of %q", cn)
	}
	if len(p.Problems) != 1 || p.Problems[0].Reason != "Certificate" {
		t.Errorf("problems: %v", p.Problems)
	}
}

func TestWebSocketsPass(t *testing.T) {
	for _, app := range []string{"", "kubernetes.io/ws", "kubernetes.io/h2c"} {
		w := newWorld(t, nil)
		echo := websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) })
		w.service("a", app, backend(t, echo))
		w.ingress("one", "a.example.com", "/ws", "a", nil)
		w.apply()
		raw, err := net.Dial("tcp", w.addr(httpPort))
		if err != nil {
			t.Fatal(err)
		}
		cfg, _ := websocket.NewConfig("ws://a.example.com/ws", "http://a.example.com")
		conn, err := websocket.NewClient(cfg, raw)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			w.apply() // a reload in between
			want, got := fmt.Sprint("message ", i), ""
			if err := websocket.Message.Send(conn, want); err != nil {
				t.Fatal(err)
			}
			if err := websocket.Message.Receive(conn, &got); err != nil || got != want {
				t.Fatalf("got %q, %v", got, err)
			}
		}
		conn.Close()
	}
}

func TestHTTP2IsSpokenToClients(t *testing.T) {
	w, ca := newWorld(t, nil), newAuthority(t)
	w.service("a", "", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) })))
	w.service("two", "kubernetes.io/h2c", backend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) })))
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto, r.TLS != nil) }))
	t.Cleanup(secure.Close)
	w.service("secure", "https", secure.Listener.Addr().String())
	w.ingress("one", "a.example.com", "/", "a", func(in *netv1.Ingress) { in.Spec.TLS = []netv1.IngressTLS{{SecretName: "a"}} })
	w.ingress("two", "a.example.com", "/two", "two", nil)
	w.ingress("three", "a.example.com", "/secure", "secure", nil)
	w.certs["default/a"] = ca.sign(1, "a.example.com")
	w.apply()
	for _, scheme := range []string{"http", "https"} {
		for path, want := range map[string]string{"/": "HTTP/1.1", "/two": "HTTP/2.0", "/secure": "HTTP/1.1true"} {
			resp, err := w.client(ca.pool, true).Get(scheme + "://a.example.com" + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.ProtoMajor != 2 || string(body) != want {
				t.Errorf("%s %s: %s to the client, %s to the backend", scheme, path, resp.Proto, body)
			}
		}
	}
}

func TestGRPCPasses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(server, state)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	for _, app := range []string{"kubernetes.io/h2c", "grpc", ""} {
		w, ca := newWorld(t, nil), newAuthority(t)
		w.service("a", app, listener.Addr().String())
		w.ingress("one", "a.example.com", "/", "a", func(in *netv1.Ingress) { in.Spec.TLS = []netv1.IngressTLS{{SecretName: "a"}} })
		w.certs["default/a"] = ca.sign(1, "a.example.com")
		w.apply()
		for port, creds := range map[uint16]credentials.TransportCredentials{
			httpPort: insecure.NewCredentials(), httpsPort: credentials.NewTLS(&tls.Config{RootCAs: ca.pool, ServerName: "a.example.com"}),
		} {
			conn, err := grpc.NewClient(w.addr(port), grpc.WithTransportCredentials(creds), grpc.WithAuthority("a.example.com"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			client := healthpb.NewHealthClient(conn)
			if resp, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || resp.Status != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("appProtocol %q, port %d: %v, %v", app, port, resp, err)
			}
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "unknown"}); grpcCode(err) != "NotFound" {
				t.Errorf("the status in the trailer is lost: %v", err)
			}
			watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
				got, err := watch.Recv()
				if err != nil || got.Status != want {
					t.Fatalf("stream: %v, %v", got, err)
				}
				state.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
			}
			state.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
			cancel()
			conn.Close()
		}
	}
}

// raw sends bytes as they are and reads what comes back, header by header.
func raw(t testing.TB, addr, request string) (*bufio.Reader, net.Conn) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(conn), conn
}
