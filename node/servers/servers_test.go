package servers

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs what the tests show each other.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) leaf(t testing.TB, name string) (certPEM, keyPEM []byte, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{serverName},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return certPEM, keyPEM, pair
}

// api is one API server behind a gate: killed, it is gone; stopped, its kernel accepts connections and nobody answers.
type api struct {
	id      string
	gate    net.Listener
	backend net.Listener
	web     *http.Server

	mu      sync.Mutex
	cond    sync.Cond
	stopped bool
	conns   map[net.Conn]struct{}
	all     sync.WaitGroup
}

func (a *api) server() Server { return Server{ID: a.id, Addr: a.gate.Addr().String(), Live: true} }

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// newAPI answers /who with its name and the client's, and streams on /stream until it is cut off.
func newAPI(t testing.TB, ca *authority, id string) *api {
	t.Helper()
	_, _, pair := ca.leaf(t, id)
	a := &api{id: id, gate: listen(t), backend: listen(t), conns: map[net.Conn]struct{}{}}
	a.cond.L = &a.mu
	mux := http.NewServeMux()
	mux.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		client := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			client = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		fmt.Fprintf(w, "%s %s %d", id, client, r.ProtoMajor)
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s\n", id)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"gitVersion":%q}`, id)
	})
	a.web = &http.Server{
		Handler: mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert},
	}
	a.all.Go(func() { a.web.ServeTLS(a.backend, "", "") })
	a.all.Go(a.accept)
	t.Cleanup(a.kill)
	return a
}

func (a *api) accept() {
	for {
		c, err := a.gate.Accept()
		if err != nil {
			return
		}
		a.all.Go(func() { a.forward(c) })
	}
}

func (a *api) forward(c net.Conn) {
	a.mu.Lock()
	a.conns[c] = struct{}{}
	a.mu.Unlock()
	back, err := net.Dial("tcp", a.backend.Addr().String())
	if err != nil {
		c.Close()
		return
	}
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buffer := make([]byte, 4096)
		for {
			n, err := from.Read(buffer)
			a.mu.Lock()
			for a.stopped {
				a.cond.Wait()
			}
			a.mu.Unlock()
			if err != nil {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	both.Go(func() { pipe(back, c) })
	both.Go(func() { pipe(c, back) })
	both.Wait()
}

func (a *api) stop(stopped bool) {
	a.mu.Lock()
	a.stopped = stopped
	a.mu.Unlock()
	a.cond.Broadcast()
}

func (a *api) kill() {
	a.gate.Close()
	a.web.Close()
	a.stop(false)
	a.mu.Lock()
	for c := range a.conns {
		c.Close()
	}
	a.mu.Unlock()
	a.all.Wait()
}

// world is three servers in the order in which the set asks them, and a client.
type world struct {
	ca     *authority
	apis   []*api
	set    *Set
	client *http.Client
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{ca: newAuthority(t)}
	// Who is asked first answers first, however busy the machine is.
	cfg := Config{Node: "node-1", Stagger: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	byID := map[string]*api{}
	for i := range 3 {
		a := newAPI(t, w.ca, fmt.Sprintf("%032x", i))
		byID[a.id] = a
		cfg.Servers = append(cfg.Servers, a.server())
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if w.set, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.set.Servers() {
		w.apis = append(w.apis, byID[s.ID])
	}
	certPEM, keyPEM, _ := w.ca.leaf(t, "system:node:node-1")
	config, err := w.set.Config(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: w.ca.pem, CertData: certPEM, KeyData: keyPEM}})
	if err != nil {
		t.Fatal(err)
	}
	if w.client, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, a := range w.apis {
			w.set.Drop(a.server().Addr)
		}
		w.client.CloseIdleConnections()
	})
	return w
}

// patience is what a busy machine may take for anything; without what the tests are about it would take minutes.
const patience = 30 * time.Second

func (w *world) who(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "https://"+serverName+"/who", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (w *world) is(t testing.TB, i int) {
	t.Helper()
	if got, want := w.who(t), w.apis[i].id+" system:node:node-1 2"; got != want {
		t.Fatalf("answered by %q, want %q", got, want)
	}
}

// stream opens a stream and returns what ends it.
func (w *world) stream(t testing.TB) <-chan error {
	t.Helper()
	res, err := w.client.Get("https://" + serverName + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 33)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		defer res.Body.Close()
		_, err := res.Body.Read(first)
		ended <- err
	}()
	return ended
}

func ends(t testing.TB, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("the stream ended with %v: a watch would not be resumed", err)
		}
	case <-time.After(patience):
		t.Fatal("the stream goes on")
	}
}

func TestAKilledServerIsLeftAtOnce(t *testing.T) {
	w := newWorld(t)
	w.is(t, 0)
	ended := w.stream(t)
	w.apis[0].kill()
	ends(t, ended)
	w.is(t, 1)
	w.apis[1].kill()
	w.is(t, 2)
}

func TestAStoppedServerIsLeftWithinASecondOrSo(t *testing.T) {
	w := newWorld(t)
	w.is(t, 0)
	ended := w.stream(t)
	w.apis[0].stop(true)
	start := time.Now()
	ends(t, ended)
	w.is(t, 1)
	t.Logf("left after %v", time.Since(start))
}

func TestAStoppedServerDelaysANewConnectionByOneStagger(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Stagger, c.Attempt = time.Second, time.Hour })
	w.apis[0].stop(true)
	start := time.Now()
	w.is(t, 1)
	t.Logf("took %v", time.Since(start))
}

func TestGossipsVerdictClosesConnections(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Idle, c.Answer = time.Hour, time.Hour })
	w.is(t, 0)
	ended := w.stream(t)
	w.apis[0].stop(true)
	list := w.set.Servers()
	list[0].Live = false
	if err := w.set.Update(list); err != nil {
		t.Fatal(err)
	}
	ends(t, ended)
	w.is(t, 1)
	// Said to be dead, all of them: still worth asking.
	for i := range list {
		list[i].Live = false
	}
	if err := w.set.Update(list); err != nil {
		t.Fatal(err)
	}
	w.is(t, 1)
	if err := w.set.Update(nil); err == nil {
		t.Error("a list of no servers was taken")
	}
}

func TestAConnectionGoesBackWithoutBreakingWhatRunsOnIt(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Return, c.Idle, c.Answer = 20*time.Millisecond, time.Hour, time.Hour })
	list := w.set.Servers()
	list[0].Live = false
	if err := w.set.Update(list); err != nil {
		t.Fatal(err)
	}
	w.is(t, 1)
	ended := w.stream(t)
	list[0].Live = true
	if err := w.set.Update(list); err != nil {
		t.Fatal(err)
	}
	w.is(t, 1) // nobody rushes
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.set.Run(ctx) }()
	deadline := time.Now().Add(patience)
	for w.who(t)[:32] != w.apis[0].id {
		if time.Now().After(deadline) {
			t.Fatal("never went back")
		}
		select {
		case err := <-ended:
			t.Fatal("what ran on the old connection was cut:", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	select {
	case err := <-ended:
		t.Fatal("what ran on the old connection was cut:", err)
	default:
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.set.Drop(w.apis[1].server().Addr)
	<-ended
}

func TestNodesAreSpreadAndAServerMoreMovesFew(t *testing.T) {
	first := func(node string, n int) string {
		cfg := Config{Node: node}
		for i := range n {
			cfg.Servers = append(cfg.Servers, Server{ID: fmt.Sprintf("%032x", i+1), Addr: "192.0.2.1:6443", Live: true})
		}
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s.Servers()[0].ID
	}
	const nodes = 900
	count, moved := map[string]int{}, 0
	for i := range nodes {
		node := fmt.Sprintf("node-%d", i)
		a := first(node, 3)
		count[a]++
		if first(node, 4) != a {
			moved++
		}
	}
	for id, n := range count {
		if n < nodes/3-80 || n > nodes/3+80 {
			t.Errorf("%s has %d of %d nodes", id, n, nodes)
		}
	}
	if moved < nodes/4-80 || moved > nodes/4+80 {
		t.Errorf("%d of %d nodes moved for a fourth server", moved, nodes)
	}
}

func TestClientGoAndCertificateFiles(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	write := func(name string) {
		certPEM, keyPEM, _ := w.ca.leaf(t, name)
		if err := errors.Join(os.WriteFile(dir+"/c", certPEM, 0o600), os.WriteFile(dir+"/k", keyPEM, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	config, err := w.set.Config(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: w.ca.pem, CertFile: dir + "/c", KeyFile: dir + "/k"}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	who := func() string {
		data, err := client.Discovery().RESTClient().Get().AbsPath("/who").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := who(); got != w.apis[0].id+" first 2" {
		t.Fatal(got)
	}
	write("second")
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(dir+"/c", later, later); err != nil {
		t.Fatal(err)
	}
	w.set.Drop(w.apis[0].server().Addr)
	if got := who(); got != w.apis[0].id+" second 2" {
		t.Fatal(got)
	}
	if _, err := client.CoreV1().Pods("x").Get(t.Context(), "y", metav1.GetOptions{}); err == nil {
		t.Error("no error for what is not served")
	}
}

// A connection that lives for months shows the certificate it was made with, which ends before it.
func TestARenewedCertificateIsShownWithoutANewStart(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	write := func(name string, age time.Duration) {
		certPEM, keyPEM, _ := w.ca.leaf(t, name)
		if err := errors.Join(os.WriteFile(dir+"/c", append(certPEM, keyPEM...), 0o600), os.Chtimes(dir+"/c", time.Now().Add(age), time.Now().Add(age))); err != nil {
			t.Fatal(err)
		}
	}
	write("first", 0)
	config, err := w.set.Config(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: w.ca.pem, CertFile: dir + "/c", KeyFile: dir + "/c"}})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: config.Transport}
	who := func() string {
		resp, err := client.Get("https://" + serverName + "/who")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	first := w.apis[0].id
	for step, want := range []string{" first 2", " first 2", " second 2"} {
		if step == 1 {
			write("second", time.Minute) // on the disk, and the connection stands
		}
		if step == 2 {
			w.set.Renew()
		}
		if got := who(); got != first+want {
			t.Errorf("step %d: %q, want %q", step, got, first+want)
		}
	}
}

func FuzzHello(f *testing.F) {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: serverName, NextProtos: []string{"h2"}}).Handshake()
		client.Close()
	}()
	hello, err := readHello(server)
	server.Close()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(hello)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{22, 3, 1, 0xff, 0xff})
	f.Add([]byte{22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := readHello(bytes.NewReader(in))
		if err == nil && (len(out) > maxHello || !bytes.HasPrefix(in, out)) {
			t.Fatalf("%d bytes of %d", len(out), len(in))
		}
	})
}
