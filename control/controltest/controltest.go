package controltest

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/raftstore"
)

// patience is how long anything may take that only happens.
const patience = 2 * time.Minute

// Server is a running API server.
type Server struct {
	*control.Server
	// Address is where it listens, host:port.
	Address string
	PKI     *pki.Authority
	Store   *raftstore.Store
}

// Start runs a server, as settings change its configuration, and returns when it is ready.
func Start(t testing.TB, settings ...func(*control.Config)) *Server {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	store, err := raftstore.Open(raftstore.Config{Dir: dir + "/raft"})
	must(err)
	authority, err := pki.Open(pki.Config{Dir: dir + "/tls", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	cfg := control.Config{
		Store: store, PKI: authority, Listener: listener, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"),
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, set := range settings {
		set(&cfg)
	}
	server, err := control.New(cfg)
	must(err)
	storeCtx, stopStore := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	storeDone, done := make(chan error, 1), make(chan error, 1)
	go func() { storeDone <- store.Run(storeCtx) }()
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		stopStore()
		if err := <-storeDone; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-server.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("stopped before it was ready: %v", err)
	case <-time.After(patience):
		t.Fatal("not ready in time")
	}
	return &Server{Server: server, Address: listener.Addr().String(), PKI: authority, Store: store}
}

// Admin is a client with the administrator's certificate, over the network.
func (s *Server) Admin() *kubernetes.Clientset { return kubernetes.NewForConfigOrDie(s.AdminConfig()) }

// AdminConfig is Admin's configuration.
func (s *Server) AdminConfig() *restclient.Config {
	leaf, c := s.PKI.Admin(), s.Anybody()
	c.CertData, c.KeyData = leaf.CertPEM(), leaf.KeyPEM()
	return c
}

// Anybody is the configuration of a client without credentials.
func (s *Server) Anybody() *restclient.Config {
	return &restclient.Config{Host: "https://" + s.Address, TLSClientConfig: restclient.TLSClientConfig{CAData: s.PKI.CA()}, QPS: -1}
}

// Bearer is a client with a token.
func (s *Server) Bearer(token string) *kubernetes.Clientset {
	c := s.Anybody()
	c.BearerToken = token
	return kubernetes.NewForConfigOrDie(c)
}

// HTTP is a client that shows the certificate, if there is one, and nothing else.
func (s *Server) HTTP(certificate *tls.Certificate) *http.Client {
	c := &tls.Config{RootCAs: s.PKI.Pool()}
	if certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
}

// Ask sends one request and returns the answer's code and body.
func (s *Server) Ask(t testing.TB, client *http.Client, method, path string, header http.Header, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+s.Address+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// File writes a file of the test's own and returns its path.
func File(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Await looks until cond holds, and fails the test when it does not in time.
func Await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	limit := time.After(patience)
	for !cond() {
		select {
		case <-look.C:
		case <-limit:
			t.Fatalf("not in time: %s", what)
		}
	}
}
