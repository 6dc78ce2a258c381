package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs the certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	dir  string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool(), dir: t.TempDir()}
	a.key = newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test-ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	writePEM(t, a.path("ca.crt"), "CERTIFICATE", der)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue makes name.crt and name.key, for both ends of a connection.
func (a *authority) issue(t testing.TB, name, cn string, orgs ...string) tls.Certificate {
	t.Helper()
	key := newKey(t)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: cn, Organization: orgs},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost", "kubernetes"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.path(name+".crt"), "CERTIFICATE", der)
	writePEM(t, a.path(name+".key"), "EC PRIVATE KEY", kd)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// fixture is a served API over TLS on loopback.
type fixture struct {
	ca     *authority
	store  *raftstore.Store
	server *Server
	addr   string
	stop   func() // what the end of the test would do
}

func serve(t testing.TB, sc raftstore.Config, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{ca: newAuthority(t)}
	if sc.Dir == "" {
		sc.InMemory = true
	}
	var err error
	if f.store, err = raftstore.Open(sc); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Store: f.store, Authorize: Organizations("system:masters")}
	if change != nil {
		change(&cfg)
	}
	if f.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	cert := f.ca.issue(t, "server", "server")
	f.ca.issue(t, "client", "client", "system:masters")
	creds := credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert}, ClientCAs: f.ca.pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
	})
	g := grpc.NewServer(append(ServerOptions(0), grpc.Creds(creds))...)
	f.server.Register(g)
	addr := "127.0.0.1:0"
	if a := os.Getenv("BALSA_ETCD_LISTEN"); a != "" {
		addr = a
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ran, served, kept := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	go func() { ran <- f.server.Run(ctx) }()
	storeCtx, stopStore := context.WithCancel(context.Background())
	go func() { kept <- f.store.Run(storeCtx) }()
	done := false
	f.stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		g.Stop()
		<-served
		stopStore()
		if err := <-kept; err != nil {
			t.Errorf("store: %v", err)
		}
	}
	t.Cleanup(f.stop)
	return f
}

// client connects as somebody with the certificate of that name, "" for none.
func (f *fixture) client(t testing.TB, name string) *clientv3.Client {
	t.Helper()
	cfg := &tls.Config{RootCAs: f.ca.pool, ServerName: "localhost"}
	if name != "" {
		cert, err := tls.LoadX509KeyPair(f.ca.path(name+".crt"), f.ca.path(name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + f.addr}, TLS: cfg, DialTimeout: time.Minute, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// within bounds a test's requests, and says where everybody hangs when that comes to pass.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		}
	})
	return ctx
}
