package control_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/raftstore"
)

// running is a server with everything below it.
type running struct {
	*control.Server
	address string
	pki     *pki.Authority
	store   *raftstore.Store
	stop    func() error
}

// start runs a server on dir until stop is called.
func start(dir string, change ...func(*control.Config)) (*running, error) {
	store, err := raftstore.Open(raftstore.Config{Dir: dir + "/raft"})
	if err != nil {
		return nil, err
	}
	authority, err := pki.Open(pki.Config{Dir: dir + "/tls", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cfg := control.Config{
		Store: store, PKI: authority, Listener: listener, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, c := range change {
		c(&cfg)
	}
	server, err := control.New(cfg)
	if err != nil {
		return nil, err
	}
	storeCtx, stopStore := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	storeDone, done := make(chan error, 1), make(chan error, 1)
	go func() { storeDone <- store.Run(storeCtx) }()
	go func() { done <- server.Run(ctx) }()
	r := &running{Server: server, address: listener.Addr().String(), pki: authority, store: store}
	r.stop = func() error {
		cancel()
		if err := <-done; err != nil {
			return err
		}
		stopStore()
		if err := <-storeDone; err != nil {
			return err
		}
		return nil
	}
	select {
	case <-server.Ready():
		return r, nil
	case err := <-done:
		return nil, fmt.Errorf("stopped before it was ready: %w", err)
	case <-time.After(2 * time.Minute):
		return nil, fmt.Errorf("not ready after two minutes")
	}
}

// shared is one server for all tests that only need one.
var shared *running

func TestMain(m *testing.M) {
	// The second handler sleeps until some time has passed since the last error of the process: with bubbles of fake time
	// beside the shared server, from the years of one to those of the other.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "control")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if shared, err = start(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := shared.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop:", err)
			return 1
		}
		return code
	}())
}

// admin is a network client with the administrator's certificate.
func (r *running) admin() *restclient.Config {
	leaf := r.pki.Admin()
	return &restclient.Config{
		Host:            "https://" + r.address,
		TLSClientConfig: restclient.TLSClientConfig{CAData: r.pki.CA(), CertData: leaf.CertPEM(), KeyData: leaf.KeyPEM()},
		QPS:             -1,
	}
}

func (r *running) tls() *tls.Config {
	return &tls.Config{RootCAs: r.pki.Pool()}
}

func clientset(t *testing.T, c *restclient.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func clientsetB(b *testing.B, r *running) *kubernetes.Clientset {
	b.Helper()
	client, err := kubernetes.NewForConfig(r.Client(masters))
	if err != nil {
		b.Fatal(err)
	}
	return client
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestDefaultObjectsAreThereWhenReady(t *testing.T) {
	ctx, client := testContext(t), clientset(t, shared.admin())
	for _, ns := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	svc, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if svc.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("kubernetes Service has address %q", svc.Spec.ClusterIP)
	}
	slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := slice.Endpoints[0].Addresses[0]; got != "192.0.2.1" {
		t.Errorf("endpoint slice has address %q", got)
	}
	//nolint:staticcheck // still served
	if _, err := client.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	for _, pc := range []string{"system-node-critical", "system-cluster-critical"} {
		if _, err := client.SchedulingV1().PriorityClasses().Get(ctx, pc, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := client.RbacV1().ClusterRoles().Get(ctx, "cluster-admin", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
