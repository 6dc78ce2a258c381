package rest_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	corev1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/raftstore"
)

// The tests of this package drive the endpoints through a real API server, which they share.
var (
	server  *control.Server
	store   *raftstore.Store
	ca      *pki.Authority
	admin   *kubernetes.Clientset
	address string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "balsa-rest")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	stop, err := start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	return m.Run()
}

func start(dir string) (stop func(), err error) {
	if store, err = raftstore.Open(raftstore.Config{Dir: dir + "/raft"}); err != nil {
		return nil, err
	}
	ca, err = pki.Open(pki.Config{Dir: dir + "/tls", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server, err = control.New(control.Config{Store: store, PKI: ca, Listener: listener, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return nil, err
	}
	storeCtx, stopStore := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	storeDone, done := make(chan error, 1), make(chan error, 1)
	go func() { storeDone <- store.Run(storeCtx) }()
	go func() { done <- server.Run(ctx) }()
	address = listener.Addr().String()
	stop = func() { cancel(); <-done; stopStore(); <-storeDone }
	select {
	case <-server.Ready():
	case <-time.After(2 * time.Minute):
		err = fmt.Errorf("not ready")
	case err = <-done:
		done <- nil
	}
	if err != nil {
		stop()
		return nil, err
	}
	admin = as(control.Identity{User: "admin", Groups: []string{"system:masters"}})
	return stop, nil
}

func as(id control.Identity) *kubernetes.Clientset {
	c := restclient.CopyConfig(server.Client(id))
	c.QPS, c.Burst = -1, -1
	return kubernetes.NewForConfigOrDie(c)
}

// namespace makes a namespace for the test, with the default ServiceAccount, because no controller runs here.
func namespace(t *testing.T) string {
	t.Helper()
	ns, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := admin.CoreV1().ServiceAccounts(ns.Name).Create(t.Context(), sa, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

func pod(t *testing.T, ns, name string, labels map[string]string) *corev1.Pod {
	t.Helper()
	p, err := admin.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
