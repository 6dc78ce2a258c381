package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/vishvananda/netlink"

	"github.com/balsahq/balsa/overlay/nettest"
)

// space is a network namespace made by a test.
type space struct{ nettest.Space }

func newSpace(t testing.TB) space { return space{nettest.New(t)} }

// cable joins two namespaces by a pair of links with addresses.
func cable(t *testing.T, a, b space, linkA, linkB, addrA, addrB string) {
	t.Helper()
	a.Cable(linkA, addrA, b.Space, linkB, addrB)
}

// serve answers every TCP connection to the address with the name and the client's address, and every datagram likewise.
func (s space) serve(name, address string) {
	s.T.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := s.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", address); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", address)
		return err
	})
	if err != nil {
		s.T.Fatal(err)
	}
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s %s", name, c.RemoteAddr().(*net.TCPAddr).IP)
			c.Close()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buffer := make([]byte, 64)
		for {
			_, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(fmt.Appendf(nil, "%s %s", name, from.(*net.UDPAddr).IP), from)
		}
	}()
	s.T.Cleanup(func() {
		tcp.Close()
		udp.Close()
		<-done
		<-done
	})
}

// ask connects from the namespace; it returns who answered and whom they saw.
func (s space) ask(network, address string) (name, seen string, err error) {
	var c net.Conn
	err = s.Do(func() (err error) {
		c, err = net.DialTimeout(network, address, 2*time.Second)
		return err
	})
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	return askOn(c, network)
}

func askOn(c net.Conn, network string) (name, seen string, err error) {
	return askOnWithin(2*time.Second, c, network)
}

func askOnWithin(limit time.Duration, c net.Conn, network string) (name, seen string, err error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	var answer []byte
	if network == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", "", err
		}
		answer = make([]byte, 64)
		n, err := c.Read(answer)
		if err != nil {
			return "", "", err
		}
		answer = answer[:n]
	} else if answer, err = io.ReadAll(c); err != nil {
		return "", "", err
	}
	name, seen, _ = strings.Cut(string(answer), " ")
	return name, seen, nil
}

// world is one node with three pods, and a host outside the cluster.
type world struct {
	t       *testing.T
	host    space
	pods    map[string]space
	outside space
	client  *fake.Clientset
	cfg     Config
	stop    func()
	network *Network
}

const nodeAddress, outsideAddress = "192.0.2.1", "192.0.2.2"

var podAddresses = map[string]string{"a": "10.244.0.11", "b": "10.244.0.12", "c": "10.244.0.13"}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, host: newSpace(t), outside: newSpace(t), pods: map[string]space{}}
	cable(t, w.host, w.outside, "eth0", "eth0", nodeAddress+"/24", outsideAddress+"/24")
	w.client = fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: v1.NodeSpec{PodCIDR: "10.244.0.0/24"}})
	dir := t.TempDir()
	w.cfg = Config{
		NodeName: "node", NetNS: w.host.Path, CNIConfDir: filepath.Join(dir, "net.d"), StateDir: filepath.Join(dir, "state"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		DNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ResolvConf: "/dev/null", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	w.host.Run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward") // a new namespace takes it over from the first
	w.start()
	t.Cleanup(func() { w.stop() })
	for name, address := range podAddresses {
		p := newSpace(t)
		w.pods[name] = p
		w.plug(name, address)
		p.serve(name, address+":8080")
	}
	return w
}

// start runs a network over whatever state there is, and waits until it is ready.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactory(w.client, 0)
	cfg := w.cfg
	cfg.Informers, cfg.Pods = factory, factory.Core().V1().Pods().Informer()
	n, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.network = n
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run returned %v", err)
		}
		factory.Shutdown()
	}
	select {
	case <-n.Ready():
	case <-time.After(time.Minute):
		w.t.Fatal("the network did not become ready")
	}
	select {
	case <-n.server.Ready():
	case <-time.After(time.Minute):
		w.t.Fatal("DNS did not become ready")
	}
}

// plug puts a pod on the bridge, as the CNI plugin would.
func (w *world) plug(name, address string) {
	w.t.Helper()
	link := "veth-" + name
	cable(w.t, w.host, w.pods[name], link, "eth0", "", address+"/24")
	w.host.Run("ip", "link", "set", link, "master", DefaultBridge)
	w.host.Run("ip", "link", "set", link, "type", "bridge_slave", "hairpin", "on", "isolated", "on")
	w.pods[name].Run("ip", "route", "add", "default", "via", "10.244.0.1")
}

// eventually polls until ok, or fails.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	nettest.Eventually(w.t, what, ok, w.rules)
}

// service makes a service on port 80 with the pods as its endpoints at port 8080.
func (w *world) service(name, ip string, endpoints []string, with ...func(*v1.Service)) {
	w.t.Helper()
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []v1.ServicePort{{Name: "web", Port: 80, Protocol: v1.ProtocolTCP}, {Name: "dgram", Port: 80, Protocol: v1.ProtocolUDP}}},
	}
	for _, f := range with {
		f(svc)
	}
	ctx := w.t.Context()
	if _, err := w.client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice(name, endpoints), metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// endpoints replaces a service's endpoints.
func (w *world) endpoints(name string, endpoints []string) {
	w.t.Helper()
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Update(w.t.Context(), slice(name, endpoints), metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func slice(name string, endpoints []string) *discovery.EndpointSlice {
	port, node := int32(8080), "node"
	tcp, udp, web, dgram := v1.ProtocolTCP, v1.ProtocolUDP, "web", "dgram"
	s := &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discovery.LabelServiceName: name}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: &web, Port: &port, Protocol: &tcp}, {Name: &dgram, Port: &port, Protocol: &udp}},
	}
	for _, e := range endpoints {
		on, address := &node, podAddresses[e]
		if address == "" { // an address of a pod elsewhere
			elsewhere := "elsewhere"
			on, address = &elsewhere, e
		}
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{address}, NodeName: on})
	}
	return s
}

// answers waits until every ask is answered by one of the pods wanted, and all of them have answered.
func (w *world) answers(from space, network, address string, want ...string) {
	w.t.Helper()
	var last string
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("last answer: %s", last)
		}
	})
	w.eventually(fmt.Sprintf("%s %s answered by %v", network, address, want), func() bool {
		seen := map[string]bool{}
		for range 40 {
			name, _, err := from.ask(network, address)
			if last = fmt.Sprint(name, err); err != nil {
				return false
			}
			seen[name] = true
			if len(seen) > len(want) {
				return false
			}
			all := true
			for _, n := range want {
				all = all && seen[n]
			}
			if all && len(seen) == len(want) {
				return true
			}
		}
		return false
	})
}

// rules is the whole table with handles: equal texts mean that nothing was touched.
func (w *world) rules() string {
	w.t.Helper()
	return w.host.Run("nft", "-a", "list", "table", "ip", "balsa")
}

func linkByName(s space, name string) (link netlink.Link, err error) {
	err = s.Do(func() error {
		link, err = netlink.LinkByName(name)
		return err
	})
	return link, err
}
