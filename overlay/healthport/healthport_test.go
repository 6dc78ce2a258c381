package healthport

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/overlay/nettest"
)

// node is a Server in a network namespace of its own.
type node struct {
	t       *testing.T
	space   nettest.Space
	api     *fake.Clientset
	healthy atomic.Bool
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, space: nettest.New(t)}
	n.api = fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}})
	n.healthy.Store(true)
	n.start()
	return n
}

func (n *node) start() {
	n.t.Helper()
	factory := informers.NewSharedInformerFactory(n.api, 0)
	s, err := New(Config{NodeName: "here", Informers: factory, Healthy: n.healthy.Load, NodeAddress: DefaultNodeAddress, StatusAddress: DefaultStatusAddress, NetNS: n.space.Path, Logger: slog.New(slog.NewTextHandler(n.t.Output(), nil))})
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
		factory.Shutdown()
	})
}

const nodePort = 10256

// get asks in the namespace; code is 0 when nobody listens.
func (n *node) get(port int, path string) (code int, header http.Header, body string) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = n.space.Do(func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, address); return err })
			return c, err
		}}}
	r, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return 0, nil, err.Error()
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, r.Header, string(b)
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	nettest.Eventually(n.t, what, ok, func() string { return "" })
}

func (n *node) says(port int, path string, want int) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("port %d%s says %d", port, path, want), func() bool { code, _, _ := n.get(port, path); return code == want })
}

func service(port int32) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "web"}, Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: port}}
}

// endpoints are of the Service, one address each, as node or node! for one that is not ready.
func endpoints(nodes ...string) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "web-1", Labels: map[string]string{discovery.LabelServiceName: "web"}}}
	for i, name := range nodes {
		name, unready := strings.CutSuffix(name, "!")
		ready := !unready
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{fmt.Sprint("10.0.0.", i)}, NodeName: &name, Conditions: discovery.EndpointConditions{Ready: &ready}})
	}
	return s
}

func TestThePortOfAServiceTellsOfItsEndpointsHere(t *testing.T) {
	n := newNode(t)
	services, slices := n.api.CoreV1().Services("d"), n.api.DiscoveryV1().EndpointSlices("d")
	if _, err := services.Create(t.Context(), service(31000), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.says(31000, "/", 503)
	if _, err := slices.Create(t.Context(), endpoints("here", "here", "here!", "elsewhere"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.says(31000, "/healthz", 200)
	_, header, body := n.get(31000, "/")
	var got struct {
		Service             struct{ Namespace, Name string }
		LocalEndpoints      int
		ServiceProxyHealthy bool
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.Service.Namespace != "d" || got.Service.Name != "web" || got.LocalEndpoints != 2 || !got.ServiceProxyHealthy {
		t.Errorf("%s: %+v %v", body, got, err)
	}
	if w := header.Get("X-Load-Balancing-Endpoint-Weight"); w != "2" {
		t.Errorf("weight %q", w)
	}
	n.healthy.Store(false)
	n.says(31000, "/", 503)
	n.healthy.Store(true)
	if _, err := slices.Update(t.Context(), endpoints("here!", "elsewhere"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.says(31000, "/", 503)
	if _, err := services.Update(t.Context(), service(31001), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.says(31001, "/", 503)
	n.says(31000, "/", 0)
	if err := services.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.says(31001, "/", 0)
}

func TestTheNodesOwnPort(t *testing.T) {
	n := newNode(t) // no Service has to be there
	n.says(nodePort, "/healthz", 200)
	if _, _, body := n.get(nodePort, "/healthz"); !strings.Contains(body, `"nodeEligible":true`) {
		t.Error(body)
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: autoscalerTaint, Effect: v1.TaintEffectNoSchedule}}}}
	if _, err := n.api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.says(nodePort, "/healthz", 503)
	n.says(nodePort, "/livez", 200)
	n.healthy.Store(false)
	n.says(nodePort, "/livez", 503)
	n.says(10249, "/proxyMode", 200)
	if _, _, body := n.get(10249, "/proxyMode"); body != "nftables" {
		t.Errorf("proxy mode %q", body)
	}
}

func TestAPortThatSomebodyElseHasIsTakenWhenItIsFree(t *testing.T) {
	n := newNode(t)
	var l net.Listener
	if err := n.space.Do(func() (err error) { l, err = net.Listen("tcp", ":31000"); return err }); err != nil {
		t.Fatal(err)
	}
	if _, err := n.api.CoreV1().Services("d").Create(t.Context(), service(31000), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.says(nodePort, "/healthz", 200) // the other port is served meanwhile
	l.Close()
	n.says(31000, "/", 503)
}
