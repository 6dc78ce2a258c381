package overlay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodePort(port int32) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeNodePort
		s.Spec.Ports = s.Spec.Ports[:1]
		s.Spec.Ports[0].NodePort = port
	}
}

func TestClusterIP(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b", "c"})
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b", "c")
	w.answers(w.pods["a"], "udp", "10.96.0.20:80", "b", "c")
	if _, seen, err := w.pods["a"].ask("tcp", "10.96.0.20:80"); err != nil || seen != podAddresses["a"] {
		t.Errorf("the backend saw %q (%v), want the pod itself", seen, err)
	}
	w.answers(w.host, "tcp", "10.96.0.20:80", "b", "c")
	w.endpoints("web", []string{"b"})
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
}

func TestPodReachesItselfThroughItsService(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b"})
	w.answers(w.pods["b"], "tcp", "10.96.0.20:80", "b")
	w.answers(w.pods["b"], "udp", "10.96.0.20:80", "b")
}

func TestPodsReachEachOtherAndTheOutside(t *testing.T) {
	w := newWorld(t)
	w.answers(w.pods["a"], "tcp", podAddresses["b"]+":8080", "b")
	if name, seen, err := w.pods["a"].ask("tcp", podAddresses["b"]+":8080"); name != "b" || seen != podAddresses["a"] {
		t.Errorf("pod to pod: %q saw %q (%v)", name, seen, err)
	}
	w.outside.serve("out", outsideAddress+":9000")
	w.answers(w.pods["a"], "tcp", outsideAddress+":9000", "out")
	if name, seen, err := w.pods["a"].ask("tcp", outsideAddress+":9000"); name != "out" || seen != nodeAddress {
		t.Errorf("pod to outside: %q saw %q (%v), want the node's address", name, seen, err)
	}
}

func TestNodePort(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b", "c"}, nodePort(30080))
	w.answers(w.outside, "tcp", nodeAddress+":30080", "b", "c")
	if _, seen, err := w.outside.ask("tcp", nodeAddress+":30080"); err != nil || seen == outsideAddress {
		t.Errorf("the backend saw %q (%v), want it hidden", seen, err)
	}
	w.answers(w.host, "tcp", nodeAddress+":30080", "b", "c")
	w.answers(w.host, "tcp", "127.0.0.1:30080", "b", "c")
	w.answers(w.pods["a"], "tcp", nodeAddress+":30080", "b", "c")
}

func TestExternalTrafficPolicyLocalKeepsTheSource(t *testing.T) {
	w := newWorld(t)
	local := func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }
	w.outside.Run("ip", "route", "add", "10.244.0.0/24", "via", nodeAddress)
	w.service("web", "10.96.0.20", []string{"b", "10.244.7.7"}, nodePort(30080), local)
	w.answers(w.outside, "tcp", nodeAddress+":30080", "b")
	if _, seen, err := w.outside.ask("tcp", nodeAddress+":30080"); err != nil || seen != outsideAddress {
		t.Errorf("the backend saw %q (%v), want the client", seen, err)
	}
	w.endpoints("web", []string{"10.244.7.7"})
	w.eventually("dropped", func() bool {
		_, _, err := w.outside.ask("tcp", nodeAddress+":30080")
		var timeout net.Error
		return errors.As(err, &timeout) && timeout.Timeout()
	})
}

func TestInternalTrafficPolicyLocal(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"c", "10.244.7.7"}, func(s *v1.Service) {
		policy := v1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &policy
	})
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "c")
}

func TestExternalAndLoadBalancerAddresses(t *testing.T) {
	w := newWorld(t)
	w.outside.Run("ip", "route", "add", "198.51.100.0/24", "via", nodeAddress)
	w.service("web", "10.96.0.20", []string{"b"}, func(s *v1.Service) {
		s.Spec.ExternalIPs = []string{"198.51.100.1"}
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.51.100.2"}}
		s.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/24"}
	})
	w.answers(w.outside, "tcp", "198.51.100.1:80", "b")
	if name, _, err := w.outside.ask("tcp", "198.51.100.2:80"); err == nil {
		t.Errorf("%s answered a client outside the load balancer's source ranges", name)
	}
}

func TestClientStaysWithItsBackend(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b", "c"}, func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP })
	var first string
	w.eventually("an answer", func() bool {
		var err error
		first, _, err = w.pods["a"].ask("tcp", "10.96.0.20:80")
		return err == nil
	})
	for range 30 {
		if name, _, err := w.pods["a"].ask("tcp", "10.96.0.20:80"); name != first {
			t.Fatalf("%q answered after %q (%v)", name, first, err)
		}
	}
	other := map[string]string{"b": "c", "c": "b"}[first]
	w.endpoints("web", []string{other, "a"})
	w.eventually("its backend gone, the client gets another", func() bool {
		name, _, err := w.pods["c"].ask("tcp", "10.96.0.20:80")
		return err == nil && name != first
	})
	w.eventually("the client forgets it", func() bool {
		name, _, err := w.pods["a"].ask("tcp", "10.96.0.20:80")
		return err == nil && name != first
	})
}

func TestServiceWithoutEndpointsRefuses(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", nil, nodePort(30080))
	for from, target := range map[*space]string{ptr(w.pods["a"]): "10.96.0.20:80", &w.host: "10.96.0.20:80", &w.outside: nodeAddress + ":30080"} {
		w.eventually("refused at "+target, func() bool {
			_, _, err := from.ask("tcp", target)
			return errors.Is(err, syscall.ECONNREFUSED)
		})
	}
	w.endpoints("web", []string{"b"})
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
}

func ptr[T any](v T) *T { return &v }

func TestDatagramFlowsFollowTheirBackend(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b"})
	w.answers(w.pods["a"], "udp", "10.96.0.20:80", "b")
	var flow net.Conn
	err := w.pods["a"].Do(func() (err error) {
		flow, err = net.Dial("udp", "10.96.0.20:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	if name, _, err := askOn(flow, "udp"); name != "b" {
		t.Fatalf("%q answered (%v)", name, err)
	}
	w.endpoints("web", []string{"c"})
	w.eventually("the same flow led to the new backend", func() bool {
		name, _, _ := askOn(flow, "udp")
		return name == "c"
	})
}

func TestHostPort(t *testing.T) {
	w := newWorld(t)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec: v1.PodSpec{NodeName: "node", Containers: []v1.Container{{
			Ports: []v1.ContainerPort{{HostPort: 8081, ContainerPort: 8080}, {HostPort: 8082, HostIP: "127.0.0.1", ContainerPort: 8080}},
		}}},
		Status: v1.PodStatus{PodIP: podAddresses["b"], Phase: v1.PodRunning},
	}
	pods := w.client.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.answers(w.outside, "tcp", nodeAddress+":8081", "b")
	w.answers(w.host, "tcp", "127.0.0.1:8081", "b")
	w.answers(w.host, "tcp", "127.0.0.1:8082", "b")
	w.answers(w.pods["b"], "tcp", nodeAddress+":8081", "b")
	if _, _, err := w.outside.ask("tcp", nodeAddress+":8082"); err == nil {
		t.Error("a host port of one address is open on another")
	}
	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("closed", func() bool {
		_, _, err := w.outside.ask("tcp", nodeAddress+":8081")
		return err != nil
	})
}

func TestDriftIsRepaired(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b"})
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")

	t.Run("table deleted", func(t *testing.T) {
		w.host.Run("nft", "delete", "table", "ip", "balsa")
		w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	})
	t.Run("chains flushed", func(t *testing.T) {
		w.host.Run("nft", "flush", "chain", "ip", "balsa", "services")
		w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	})
	t.Run("elements deleted", func(t *testing.T) {
		w.host.Run("nft", "flush", "map", "ip", "balsa", "services")
		w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	})
	t.Run("bridge deleted", func(t *testing.T) {
		before, err := linkByName(w.host, DefaultBridge)
		if err != nil {
			t.Fatal(err)
		}
		w.host.Run("ip", "link", "del", DefaultBridge)
		w.eventually("bridge back", func() bool {
			after, err := linkByName(w.host, DefaultBridge)
			return err == nil && after.Attrs().Index != before.Attrs().Index
		})
		w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	})
	t.Run("address removed", func(t *testing.T) {
		w.host.Run("ip", "addr", "flush", "dev", DefaultBridge)
		w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	})
	t.Run("DNS link deleted", func(t *testing.T) {
		w.host.Run("ip", "link", "del", DefaultDNSLink)
		w.eventually("DNS answers again", func() bool {
			m, err := w.query(w.pods["a"], "udp", "web.default.svc.cluster.local.", dns.TypeA)
			return err == nil && len(m.Answer) == 1
		})
	})
}

func TestRestartTouchesNothingThatIsRight(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b", "c"}, nodePort(30080))
	w.service("empty", "10.96.0.21", nil)
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b", "c")
	w.eventually("the empty service refused", func() bool { return strings.Contains(w.rules(), "10.96.0.21 . udp . 80") })
	conflist := filepath.Join(w.cfg.CNIConfDir, ConflistName)
	written, err := os.Stat(conflist)
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := linkByName(w.host, DefaultBridge)
	if err != nil {
		t.Fatal(err)
	}
	before := w.rules()
	w.stop()
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b", "c") // without us
	w.start()
	if after := w.rules(); after != before {
		t.Errorf("the table changed from\n%s\nto\n%s", before, after)
	}
	if again, err := os.Stat(conflist); err != nil || !again.ModTime().Equal(written.ModTime()) {
		t.Errorf("the CNI configuration was written again (%v)", err)
	}
	if again, err := linkByName(w.host, DefaultBridge); err != nil || again.Attrs().Index != bridge.Attrs().Index {
		t.Errorf("the bridge was made again (%v)", err)
	}
}

func TestAnAddressGivenAgainIsReachedAtOnce(t *testing.T) {
	w := newWorld(t)
	address := podAddresses["a"]
	if name, _, err := w.host.ask("tcp", address+":8080"); name != "a" {
		t.Fatalf("before: %q (%v)", name, err)
	}
	if known := w.host.Run("ip", "neigh", "show", address); !strings.Contains(known, "lladdr") {
		t.Fatalf("the node does not know the pod's link-layer address: %q", known)
	}
	w.host.Run("ip", "link", "del", "veth-a")
	w.eventually("the dead link-layer address forgotten", func() bool {
		return !strings.Contains(w.host.Run("ip", "neigh", "show", address), "lladdr")
	})
	w.plug("a", address)
	if name, _, err := w.host.ask("tcp", address+":8080"); name != "a" {
		t.Errorf("after: %q (%v)", name, err)
	}
}

func TestCleanupLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b"})
	w.answers(w.pods["a"], "tcp", "10.96.0.20:80", "b")
	w.stop()
	for range 2 {
		if err := Cleanup(Config{NetNS: w.host.Path, CNIConfDir: w.cfg.CNIConfDir, StateDir: w.cfg.StateDir}); err != nil {
			t.Fatal(err)
		}
	}
	if tables := strings.TrimSpace(w.host.Run("nft", "list", "tables")); tables != "" {
		t.Errorf("tables left: %s", tables)
	}
	for _, link := range []string{DefaultBridge, DefaultDNSLink} {
		if _, err := linkByName(w.host, link); err == nil {
			t.Errorf("link %s is left", link)
		}
	}
	if routes := w.host.Run("ip", "route"); strings.Contains(routes, "10.96.") || strings.Contains(routes, "10.244.") {
		t.Errorf("routes left: %s", routes)
	}
	if forward := strings.TrimSpace(w.host.Run("cat", "/proc/sys/net/ipv4/ip_forward")); forward != "0" {
		t.Errorf("ip_forward is %s, was 0", forward)
	}
	for _, dir := range []string{w.cfg.CNIConfDir, w.cfg.StateDir} {
		if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) > 0 {
			t.Errorf("files left: %v", files)
		}
	}
}

func (w *world) query(from space, network, name string, kind uint16) (*dns.Msg, error) {
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = net.DialTimeout(network, "10.96.0.10:53", 2*time.Second)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	m := new(dns.Msg)
	m.SetQuestion(name, kind)
	answer, _, err := (&dns.Client{Net: network, Timeout: 2 * time.Second}).ExchangeWithConn(m, &dns.Conn{Conn: c})
	return answer, err
}

func TestNamesAreAnsweredToPods(t *testing.T) {
	w := newWorld(t)
	w.service("web", "10.96.0.20", []string{"b"})
	w.service("head", v1.ClusterIPNone, []string{"b", "c"})
	for _, network := range []string{"udp", "tcp"} {
		for name, count := range map[string]int{"web.default.svc.cluster.local.": 1, "head.default.svc.cluster.local.": 2} {
			w.eventually(network+" "+name, func() bool {
				m, err := w.query(w.pods["a"], network, name, dns.TypeA)
				return err == nil && m.Rcode == dns.RcodeSuccess && len(m.Answer) == count
			})
		}
	}
	m, err := w.query(w.host, "udp", "nothing.default.svc.cluster.local.", dns.TypeA)
	if err != nil || m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 {
		t.Errorf("unknown name: %v (%v)", m, err)
	}
}

func TestHundredsOfServices(t *testing.T) {
	w := newWorld(t)
	const count = 600
	for i := range count {
		w.service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250), []string{"b", "c"})
	}
	last := fmt.Sprintf("10.96.%d.%d:80", 1+(count-1)/250, 1+(count-1)%250)
	w.answers(w.pods["a"], "tcp", last, "b", "c")
	started := time.Now()
	w.endpoints(fmt.Sprintf("s%d", count-1), []string{"b"})
	w.answers(w.pods["a"], "tcp", last, "b")
	t.Logf("one change among %d services took effect within %s", count, time.Since(started))
}
