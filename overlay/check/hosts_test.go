package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/nettest"
)

// TestMain lets the test program be started again on a host as its agent: plugins work in the namespace of the process that
// starts them.
func TestMain(m *testing.M) {
	if at := os.Getenv("CHECK_TEST_LISTEN"); at != "" {
		if err := serveAgent(at); err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func serveAgent(at string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	a, err := NewAgent(AgentConfig{Node: os.Getenv("NODE"), CNIConfDir: os.Getenv("CONF"), CNIBinDirs: []string{os.Getenv("BIN")}, StateDir: os.Getenv("STATE")})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: a, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	return a.Run(ctx)
}

// space is a network namespace made by a test.
type space struct{ nettest.Space }

func newSpace(t testing.TB) space { return space{nettest.New(t)} }

// sh runs several commands.
func (s space) sh(script string) {
	s.T.Helper()
	s.Sh("%s", script)
}

// hosts are three nodes on two subnets with a router between them, which lets no packet with a pod's address pass: n1 and n2
// reach each other's pods straight, n3 by VXLAN.
type hosts struct {
	t      *testing.T
	router space
	client *fake.Clientset
	nodes  []*node
	bin    string
}

type node struct {
	space
	name, address string
	dir           string
	agent         *exec.Cmd
	stopNetwork   func()
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	h := &hosts{t: t, router: newSpace(t), client: fake.NewClientset(), bin: t.TempDir()}
	const from = "github.com/containernetworking/plugins/plugins/"
	build := exec.Command("go", "build", "-C", "../../node/runtime/tools", "-o", h.bin, from+"main/bridge", from+"main/loopback", from+"ipam/host-local")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build plugins: %v\n%s", err, out)
	}
	h.router.sh(`for n in 1 2; do ip link add s$n address 02:00:00:00:00:0$n type bridge; ip link set s$n up; done
		ip addr add 192.0.2.1/25 dev s1; ip addr add 192.0.2.129/25 dev s2; echo 1 > /proc/sys/net/ipv4/ip_forward
		for f in /proc/sys/net/bridge/bridge-nf-call-iptables; do if [ -e $f ]; then echo 0 > $f; fi; done
		nft add table ip guard; nft 'add chain ip guard pass { type filter hook forward priority 0 ; }'
		nft add rule ip guard pass ip saddr 10.244.0.0/16 drop; nft add rule ip guard pass ip daddr 10.244.0.0/16 drop`)
	h.serveNames("192.0.2.1:53")
	h.addService("kubernetes", "10.96.0.1", 0, "192.0.2.11", "")
	for i, address := range []string{"192.0.2.11", "192.0.2.12", "192.0.2.140"} {
		h.plug(i+1, address)
	}
	for _, n := range h.nodes {
		n.stopNetwork = h.startNetwork(n)
		h.startAgent(n)
	}
	return h
}

// serveNames is the resolver of all hosts; it knows every name.
func (h *hosts) serveNames(at string) {
	h.t.Helper()
	var conn net.PacketConn
	if err := h.router.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", at)
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(r)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 0}, A: net.IPv4(192, 0, 2, 77)}}
		_ = w.WriteMsg(m)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ActivateAndServe()
	}()
	h.t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
}

func (h *hosts) plug(number int, address string) {
	t := h.t
	n := &node{space: newSpace(t), name: fmt.Sprintf("n%d", number), address: address, dir: t.TempDir()}
	subnet, gateway := "s1", "192.0.2.1"
	if strings.HasSuffix(address, "140") {
		subnet, gateway = "s2", "192.0.2.129"
	}
	h.router.Run("ip", "link", "add", n.name, "type", "veth", "peer", "name", "eth0", "netns", n.Path)
	h.router.sh("ip link set " + n.name + " master " + subnet + " up")
	n.sh("ip addr add " + address + "/25 dev eth0; ip link set eth0 up; ip route add default via " + gateway)
	cidr := fmt.Sprintf("10.244.%d.0/24", number)
	if _, err := h.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, CreationTimestamp: metav1.Unix(int64(number), 0)},
		Spec:       v1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.nodes = append(h.nodes, n)
}

func (h *hosts) startNetwork(n *node) (stop func()) {
	t := h.t
	t.Helper()
	resolv := filepath.Join(n.dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(h.client, 0)
	network, err := overlay.New(overlay.Config{
		NodeName: n.name, Informers: factory, NetNS: n.Path, CNIConfDir: filepath.Join(n.dir, "net.d"), StateDir: filepath.Join(n.dir, "state"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		DNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ResolvConf: resolv, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)).With("on", n.name),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = network.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		factory.Shutdown()
	})
	t.Cleanup(stop)
	select {
	case <-network.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the network did not become ready")
	}
	return stop
}

func (h *hosts) startAgent(n *node) {
	h.t.Helper()
	cmd := exec.Command("nsenter", "--net="+n.Path, os.Args[0])
	cmd.Env = append(os.Environ(), "CHECK_TEST_LISTEN="+n.address+":10250", "NODE="+n.name, "CONF="+filepath.Join(n.dir, "net.d"), "BIN="+h.bin, "STATE="+filepath.Join(n.dir, "check"))
	cmd.Stderr = h.t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the child dies with the thread that made it
		started <- cmd.Start()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		h.t.Fatal(err)
	}
	n.agent = cmd
	h.t.Cleanup(func() { _ = cmd.Process.Kill() })
	h.eventually("the agent of "+n.name+" serves", func() bool {
		_, err := h.call(h.t.Context(), n.name, &Request{Run: newRun(), Close: true})
		return err != nil && strings.Contains(err.Error(), errNoProbe.Error())
	})
}

func (h *hosts) eventually(what string, ok func() bool) {
	h.t.Helper()
	nettest.Eventually(h.t, what, ok, func() string { return "" })
}

// call asks a node's agent from the router, as the API server would.
func (h *hosts) call(ctx context.Context, name string, r *Request) (*Reply, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = h.router.Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}}}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.node(name).address+":10250"+Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	reply := new(Reply)
	return reply, json.NewDecoder(answer.Body).Decode(reply)
}

func (h *hosts) node(name string) *node {
	for _, n := range h.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// addService makes a Service with one endpoint.
func (h *hosts) addService(name, ip string, port int32, backend, on string) {
	h.t.Helper()
	web, number, tcp := "web", int32(EchoPort), v1.ProtocolTCP
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Name: web, Port: 80, Protocol: tcp, NodePort: port}},
	}}
	endpoint := discovery.Endpoint{Addresses: []string{backend}}
	if port > 0 {
		svc.Spec.Type, endpoint.NodeName = v1.ServiceTypeNodePort, &on
	}
	_, err := h.client.CoreV1().Services("default").Create(h.t.Context(), svc, metav1.CreateOptions{})
	if err == nil {
		_, err = h.client.DiscoveryV1().EndpointSlices("default").Create(h.t.Context(), &discovery.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discovery.LabelServiceName: name}},
			AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Name: &web, Port: &number, Protocol: &tcp}}, Endpoints: []discovery.Endpoint{endpoint},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// publish makes the Services of a check.
func (h *hosts) publish(ctx context.Context, run string, probes map[string]netip.Addr) (map[string]Published, func(), error) {
	out, i := make(map[string]Published), 0
	var undo []string
	for name, at := range probes {
		i++
		ip, port, service := netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), int32(30100+i), "check-"+name
		h.addService(service, ip.String(), port, at.String(), name)
		undo = append(undo, service)
		out[name] = Published{Cluster: netip.AddrPortFrom(ip, 80), NodePort: uint16(port)}
	}
	return out, func() {
		for _, service := range undo {
			_ = h.client.CoreV1().Services("default").Delete(ctx, service, metav1.DeleteOptions{})
			_ = h.client.DiscoveryV1().EndpointSlices("default").Delete(ctx, service, metav1.DeleteOptions{})
		}
	}, nil
}

// check runs a whole check and returns what is broken, one line each.
func (h *hosts) check() string {
	h.t.Helper()
	cfg := Config{Call: h.call, Publish: h.publish, DNS: netip.MustParseAddr("10.96.0.10"), Within: 40 * time.Second,
		ClusterName: "kubernetes.default.svc.cluster.local", OutsideName: "www.example.com"}
	for _, n := range h.nodes {
		cfg.Nodes = append(cfg.Nodes, NodeTarget{Name: n.name, Address: netip.MustParseAddrPort(n.address + ":10250")})
	}
	r, err := Run(h.t.Context(), cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	var text strings.Builder
	if err := Write(&text, r, Diagnose(r), false); err != nil {
		h.t.Fatal(err)
	}
	h.t.Log("\n" + text.String())
	return text.String()
}

// taken are the addresses that the plugins of a node have given away.
func (n *node) taken() []string {
	list, _ := filepath.Glob(filepath.Join(n.dir, "state", "ipam", "*", "10.*"))
	return list
}
