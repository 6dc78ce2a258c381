package control_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/raftstore"
)

// several are API servers over stores that hold the same; with one store they share it.
func several(t testing.TB, stores ...*raftstore.Store) []*running {
	t.Helper()
	all := assembled(t, stores...)
	for _, r := range all {
		select {
		case <-r.Ready():
		case <-time.After(2 * time.Minute):
			t.Fatal("not ready after two minutes")
		}
	}
	return all
}

// assembled is several without waiting for them.
func assembled(t testing.TB, stores ...*raftstore.Store) []*running {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.Open(pki.Config{Dir: dir + "/tls", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
	var all []*running
	for i, store := range stores {
		secure := handshaked(t, authority)
		server, err := control.New(control.Config{
			Store: store, PKI: authority, Secure: secure, AdvertiseAddress: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
			GRPC: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				fmt.Fprintf(w, "grpc for %s", r.TLS.PeerCertificates[0].Subject.CommonName)
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() error { return server.Run(ctx) })
		all = append(all, &running{Server: server, address: secure.Addr().String(), pki: authority, store: store})
	}
	return all
}

// memoryStore is a store of one peer.
func memoryStore(t testing.TB) *raftstore.Store {
	t.Helper()
	store, err := raftstore.Open(raftstore.Config{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return store
}

// handshakes is a listener that yields connections whose handshake is done, as a port that serves several protocols does.
type handshakes struct {
	net.Listener
	ready chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func handshaked(t testing.TB, authority *pki.Authority) *handshakes {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &handshakes{Listener: l, ready: make(chan net.Conn), done: make(chan struct{})}
	settings := &tls.Config{
		NextProtos: []string{"h2", "http/1.1"}, GetCertificate: authority.Serving().GetCertificate, ClientAuth: tls.RequestClientCert,
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				c := tls.Server(conn, settings)
				if c.Handshake() != nil {
					c.Close()
					return
				}
				select {
				case h.ready <- c:
				case <-h.done:
					c.Close()
				}
			}()
		}
	}()
	return h
}

func (h *handshakes) Accept() (net.Conn, error) {
	select {
	case c := <-h.ready:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handshakes) Close() error {
	h.once.Do(func() { close(h.done) })
	return h.Listener.Close()
}

// TestConnectionsWhoseHandshakeIsDoneAreServed: REST over HTTP/2 and HTTP/1.1, with the client's certificate, and gRPC
// beside it.
func TestConnectionsWhoseHandshakeIsDoneAreServed(t *testing.T) {
	r := several(t, memoryStore(t))[0]
	leaf := r.pki.Admin()
	certificate, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		http2             bool
		path, contentType string
		code              int
		body              string
	}{
		{true, "/api/v1/namespaces/default", "", 200, `"name":"default"`},
		{false, "/api/v1/namespaces/default", "", 200, `"name":"default"`},
		{true, "/balsa.Cluster/Status", "application/grpc+proto", 200, "grpc for kubernetes-admin"},
		{true, "/balsa.Cluster/Status", "application/grpc-web", 404, ""},
		{false, "/balsa.Cluster/Status", "application/grpc", 404, ""},
	} {
		transport := &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: r.pki.Pool(), Certificates: []tls.Certificate{certificate}},
			ForceAttemptHTTP2: c.http2,
		}
		req, err := http.NewRequestWithContext(testContext(t), "GET", "https://"+r.address+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", c.contentType)
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, 1<<16)
		n, _ := res.Body.Read(body)
		res.Body.Close()
		transport.CloseIdleConnections()
		if want := map[bool]int{true: 2, false: 1}[c.http2]; res.ProtoMajor != want || res.StatusCode != c.code || !strings.Contains(string(body[:n]), c.body) {
			t.Errorf("%+v: HTTP/%d %d %s", c, res.ProtoMajor, res.StatusCode, body[:n])
		}
	}
}

// TestSeveralServersOverOneStore: they start at the same time without a conflict, and no address or port of a Service is
// given twice.
func TestSeveralServersOverOneStore(t *testing.T) {
	store := memoryStore(t)
	giveNothingTwice(t, several(t, store, store, store))
}

// giveNothingTwice makes Services through all servers at once.
func giveNothingTwice(t *testing.T, servers []*running) {
	t.Helper()
	const each = 40
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var group errgroup.Group
	for i, r := range servers {
		client := clientset(t, r.Client(masters))
		for n := range each {
			group.Go(func() error {
				_, err := client.CoreV1().Services("default").Create(ctx, &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d-%d", i, n)},
					Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}}},
				}, metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) { // the answer was lost with a leader, and the client has asked again
					return nil
				}
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	list, err := clientset(t, servers[0].Client(masters)).CoreV1().Services("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ips, ports := map[string]string{}, map[int32]string{}
	for _, s := range list.Items {
		if other := ips[s.Spec.ClusterIP]; other != "" {
			t.Errorf("%s and %s have address %s", s.Name, other, s.Spec.ClusterIP)
		}
		ips[s.Spec.ClusterIP] = s.Name
		for _, p := range s.Spec.Ports {
			if other := ports[p.NodePort]; p.NodePort != 0 && other != "" {
				t.Errorf("%s and %s have port %d", s.Name, other, p.NodePort)
			}
			ports[p.NodePort] = s.Name
		}
	}
	if want := each*len(servers) + 1; len(ips) != want {
		t.Errorf("%d addresses, want %d", len(ips), want)
	}
}

// whatOneWritesTheNextKnows walks through what a client may do at one server on the strength of what another has just
// acknowledged to it. Names begin at first.
func whatOneWritesTheNextKnows(t *testing.T, first int, a, b *running) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	there, here := clientset(t, a.Client(masters)), clientset(t, b.Client(masters))
	for i := range 10 {
		i += first
		if err := errors.Join(podInNewNamespace(ctx, there, here, i), allowedByNewBinding(ctx, there, b, i)); err != nil {
			t.Fatal(err)
		}
	}
}

func podInNewNamespace(ctx context.Context, there, here kubernetes.Interface, i int) error {
	name := fmt.Sprintf("fresh-%d", i)
	_, err := there.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	account, err := there.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod, err := here.CoreV1().Pods(name).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("pod in a namespace that another server made: %w", err)
	}
	w, err := there.CoreV1().Pods(name).Watch(ctx, metav1.ListOptions{ResourceVersion: account.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		if got, ok := e.Object.(*corev1.Pod); !ok || e.Type != watch.Added || got.UID != pod.UID {
			return fmt.Errorf("watch resumed on another server: %+v", e)
		}
	case <-ctx.Done():
		return errors.New("a watch resumed on another server shows nothing")
	}
	return nil
}

func allowedByNewBinding(ctx context.Context, there kubernetes.Interface, b *running, i int) error {
	user := fmt.Sprintf("user-%d", i)
	_, err := there.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: "rbac.authorization.k8s.io"}},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "view", APIGroup: "rbac.authorization.k8s.io"},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(b.Client(control.Identity{User: user}))
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("what another server has just allowed: %w", err)
	}
	return nil
}

func TestWhatOneServerAcknowledgedTheOthersKnow(t *testing.T) {
	store := memoryStore(t)
	servers := several(t, store, store)
	whatOneWritesTheNextKnows(t, 0, servers[0], servers[1])
}
