package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/e2e/lan"
)

// hosts is a cluster of one server and several agents on two subnets, all of which take pods. On each host runs one pod
// of the DaemonSet "web".
//
//	subnet 0: hosts 0 (the server) and 2, the spare host, clients outside
//	subnet 1: hosts 1 and 3
type hosts struct {
	*several
	all  []*cluster // the server first
	pods map[*cluster]*webPod
	web  string // address of the Service
}

// webPod is a pod whose network namespace a test can enter.
type webPod struct {
	name string
	ip   netip.Addr
	ns   netns.NsHandle
}

const (
	webNodePort = 30080
	webPods     = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: a, image: "balsahq/hello:1", resources: {requests: {cpu: 10m}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
`
)

// newHosts starts a cluster of one server and three agents, with a spare machine.
func newHosts(t *testing.T) *hosts {
	t.Helper()
	n, err := lan.New(lan.Config{Machines: 5, Subnets: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	h := &hosts{several: &several{t: t, net: n, spare: n.Machines[4:]}, pods: map[*cluster]*webPod{}}
	for i, m := range n.Machines[:4] {
		c := newHostOn(t, m)
		if h.all = append(h.all, c); i == 0 {
			h.servers = append(h.servers, c)
		} else {
			h.agents = append(h.agents, c)
		}
	}
	h.form()
	h.servers[0].apply(webPods)
	h.web = "http://" + h.servers[0].clusterIP("web")
	h.learnPods()
	return h
}

// learnPods waits until every host's pod runs, and records it.
func (h *hosts) learnPods() {
	h.t.Helper()
	client := h.clientWithin(h.servers[0], 10*time.Second)
	h.servers[0].eventually("every host has its pod", func() error {
		list, err := client.CoreV1().Pods("default").List(h.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		for _, c := range h.all {
			i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool {
				return p.Spec.NodeName == c.NodeName() && p.Status.PodIP != "" && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning
			})
			if i < 0 {
				return fmt.Errorf("none runs on %s", c.NodeName())
			}
			if known := h.pods[c]; known != nil && known.name == list.Items[i].Name {
				continue
			}
			p := &webPod{name: list.Items[i].Name, ip: netip.MustParseAddr(list.Items[i].Status.PodIP)}
			if p.ns, err = namespaceOf(c, p.ip); err != nil {
				return err
			}
			h.t.Cleanup(func() { p.ns.Close() })
			h.pods[c] = p
		}
		return nil
	})
}

// namespaceOf returns the network namespace of the host's pod with an address. It finds the pod by the processes in the
// host's control groups.
func namespaceOf(c *cluster, ip netip.Addr) (netns.NsHandle, error) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(raw), "/"+c.Name+"/") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		ns, err := netns.GetFromPid(pid)
		if err != nil {
			continue
		}
		if hasAddress(ns, ip) {
			return ns, nil
		}
		ns.Close()
	}
	return netns.None(), fmt.Errorf("no process on %s has the address %s", c.NodeName(), ip)
}

func hasAddress(ns netns.NsHandle, ip netip.Addr) bool {
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return false
	}
	defer handle.Close()
	list, err := handle.AddrList(nil, netlink.FAMILY_V4)
	return err == nil && slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IP.Equal(ip.AsSlice()) })
}

// in runs do in a network namespace, on a thread that ends with it.
func in(ns netns.NsHandle, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

// dialer connects from a fixed place.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func (p *webPod) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = in(p.ns, func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// fetch gets a page from a web pod over a new connection. It returns the name of the pod, and the client address that
// the pod saw.
func fetch(from dialer, url string) (pod, seen string, err error) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: from, DisableKeepAlives: true}}
	answer, err := client.Get(url)
	if err != nil {
		return "", "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	for line := range strings.Lines(string(body)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "pod":
			pod = value
		case "from":
			seen, _, _ = net.SplitHostPort(value)
		}
	}
	return pod, seen, err
}

// reach tests each kind of connection once: pods to pods by address, pods to nodes, nodes to pods, all to the Service,
// and clients outside to every node's port.
func (h *hosts) reach() error {
	var joined sync.WaitGroup
	faults := make([]error, len(h.all))
	for i, from := range h.all {
		joined.Go(func() { faults[i] = h.reachFrom(from) })
	}
	joined.Wait()
	return errors.Join(faults...)
}

func (h *hosts) reachFrom(from *cluster) error {
	var faults []error
	check := func(what string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s %s: %w", from.NodeName(), what, err))
		}
	}
	own := h.pods[from]
	for _, to := range h.all {
		pod := h.pods[to]
		url := fmt.Sprintf("http://%s:8080", pod.ip)
		name, seen, err := fetch(own.dial, url)
		if err == nil && (name != pod.name || seen != own.ip.String()) {
			err = fmt.Errorf("%s answered and saw %s, want %s and %s", name, seen, pod.name, own.ip)
		}
		check("pod to pod on "+to.NodeName(), err)
		_, _, err = fetch(from.Dial, url)
		check("node to pod on "+to.NodeName(), err)
		ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
		c, err := own.dial(ctx, "tcp", net.JoinHostPort(to.Addr.String(), "10250"))
		cancel()
		if err == nil {
			c.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) { // counts as an answer: the agent may be restarting
			err = nil
		}
		check("pod to node "+to.NodeName(), err)
	}
	_, _, err := fetch(own.dial, h.web)
	check("pod to Service", err)
	_, _, err = fetch(from.Dial, h.web)
	check("node to Service", err)
	_, _, err = fetch(h.net.Client.Dial, fmt.Sprintf("http://%s:%d", from.Addr, webNodePort))
	check("outside to node port", err)
	return errors.Join(faults...)
}

// works waits until every connection of reach succeeds, and returns how long that took.
func (h *hosts) works(what string) time.Duration {
	h.t.Helper()
	began := time.Now()
	h.servers[0].eventually(what, h.reach)
	return time.Since(began)
}

// backends returns the pods that answer for the Service. It sends many requests, none of which may fail.
func (h *hosts) backends(from dialer) error {
	seen := map[string]bool{}
	for range 30 * len(h.all) {
		name, _, err := fetch(from, h.web)
		if err != nil {
			return err
		}
		if seen[name] = true; len(seen) == len(h.all) {
			return nil
		}
	}
	return fmt.Errorf("only %d pods of %d answer for the Service", len(seen), len(h.all))
}

// stream sends a datagram every few milliseconds from one pod to another and back.
type stream struct {
	name string
	end  func()

	mu      sync.Mutex
	sent    int
	waiting map[int]time.Time // not yet back
}

// stream starts one between two hosts' pods, until the test ends.
func (h *hosts) stream(from, to *cluster) *stream {
	h.t.Helper()
	var echo, client net.PacketConn
	a, b := h.pods[from], h.pods[to]
	s := &stream{name: from.NodeName() + " to " + to.NodeName(), waiting: map[int]time.Time{}}
	h.must(in(b.ns, func() (err error) { echo, err = net.ListenPacket("udp", b.ip.String()+":0"); return err }))
	h.must(in(a.ns, func() (err error) { client, err = net.ListenPacket("udp", a.ip.String()+":0"); return err }))
	stop := make(chan struct{})
	var joined sync.WaitGroup
	joined.Go(func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := echo.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buffer[:n], from)
		}
	})
	joined.Go(func() { s.receive(client) })
	joined.Go(func() { s.send(client, echo.LocalAddr(), stop) })
	s.end = sync.OnceFunc(func() {
		close(stop)
		client.Close()
		echo.Close()
		joined.Wait()
	})
	h.t.Cleanup(s.end)
	return s
}

func (s *stream) send(c net.PacketConn, to net.Addr, stop <-chan struct{}) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		s.mu.Lock()
		n := s.sent
		s.sent++
		s.waiting[n] = time.Now()
		s.mu.Unlock()
		_, _ = c.WriteTo([]byte(strconv.Itoa(n)), to)
	}
}

func (s *stream) receive(c net.PacketConn) {
	buffer := make([]byte, 64)
	for {
		n, _, err := c.ReadFrom(buffer)
		if err != nil {
			return
		}
		number, _ := strconv.Atoi(string(buffer[:n]))
		s.mu.Lock()
		delete(s.waiting, number)
		s.mu.Unlock()
	}
}

// lost returns how many datagrams sent so far do not come back, also after the time that a busy computer may need. Each
// is counted once.
func (s *stream) lost() (lost, sent int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent = s.sent
	missing := func() (list []int) {
		for n := range s.waiting {
			if n < sent {
				list = append(list, n)
			}
		}
		return list
	}
	for end := time.Now().Add(10 * time.Second); len(missing()) > 0 && time.Now().Before(end); {
		s.mu.Unlock()
		<-time.After(20 * time.Millisecond)
		s.mu.Lock()
	}
	for _, n := range missing() {
		lost++
		delete(s.waiting, n)
	}
	return lost, sent
}

// unharmed fails the test if the streams have lost a datagram since the last call.
func unharmed(t *testing.T, streams ...*stream) {
	t.Helper()
	for _, s := range streams {
		if lost, sent := s.lost(); lost > 0 || sent == 0 {
			t.Errorf("%s: %d of %d datagrams were lost", s.name, lost, sent)
		}
	}
}
