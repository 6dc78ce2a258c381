package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/e2e/lan"
)

const dualWeb = webPods + `
  ipFamilyPolicy: RequireDualStack
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec:
  ipFamilies: [IPv6]
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// TestDualStack: in a cluster of both families, nodes and pods report an address of each family. Every pod is reached
// from every pod through a Service's address of either family, through its node ports, and by its name.
func TestDualStack(t *testing.T) {
	n, err := lan.New(lan.Config{Machines: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	h := &hosts{several: &several{t: t, net: n}, pods: map[*cluster]*webPod{}}
	second := func(i int) string { return fmt.Sprintf("fd00:99::%d", i+1) }
	for i, m := range n.Machines {
		if out, err := m.Command(t.Context(), "ip", "-6", "addr", "add", second(i)+"/64", "dev", "eth0", "nodad").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if i > 0 { // finds its addresses by itself
			h.agents = append(h.agents, newHostOn(t, m))
			continue
		}
		h.servers = append(h.servers, newHostOn(t, m, "--node-ip="+m.Addr.String()+","+second(i),
			"--cluster-cidr=10.244.0.0/16,fd00:244::/48", "--service-cidr=10.96.0.0/16,fd00:96::/108"))
	}
	h.all = slices.Concat(h.servers, h.agents)
	h.form()
	first := h.servers[0]
	first.apply(dualWeb)
	h.learnPods()
	client := h.clientWithin(first, 10*time.Second)
	for i, c := range h.all {
		h.reportsBoth(c, n.Machines[i].Addr.String(), second(i))
	}
	web, err := client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	h.must(err)
	six, err := client.CoreV1().Services("default").Get(t.Context(), "six", metav1.GetOptions{})
	h.must(err)
	if len(web.Spec.ClusterIPs) != 2 || len(six.Spec.ClusterIPs) != 1 {
		t.Fatalf("addresses %v and %v", web.Spec.ClusterIPs, six.Spec.ClusterIPs)
	}
	for _, c := range h.all {
		from := h.pods[c]
		for _, ip := range append(slices.Clone(web.Spec.ClusterIPs), six.Spec.ClusterIP) {
			first.eventually("a pod of "+c.NodeName()+" reaches both pods at "+ip, func() error {
				return h.bothAnswer(from.dial, "http://"+net.JoinHostPort(ip, "80"))
			})
		}
		first.eventually("a pod of "+c.NodeName()+" finds both addresses", func() error { return findsBoth(t.Context(), from.dial, web.Spec.ClusterIPs) })
	}
	for i := range h.all {
		for _, ip := range []string{n.Machines[i].Addr.String(), second(i)} {
			first.eventually("both pods answer at the node port of "+ip, func() error {
				return h.bothAnswer(n.Machines[1-i].Dial, "http://"+net.JoinHostPort(ip, "30080"))
			})
		}
	}
}

// reportsBoth checks the addresses in the status of a node and of its pod.
func (h *hosts) reportsBoth(c *cluster, addresses ...string) {
	h.t.Helper()
	client := h.clientWithin(h.servers[0], 10*time.Second)
	node, err := client.CoreV1().Nodes().Get(h.t.Context(), c.NodeName(), metav1.GetOptions{})
	h.must(err)
	var internal []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			internal = append(internal, a.Address)
		}
	}
	if !slices.Equal(internal, addresses) || len(node.Spec.PodCIDRs) != 2 {
		h.t.Errorf("%s: InternalIPs %v, want %v; podCIDRs %v", c.NodeName(), internal, addresses, node.Spec.PodCIDRs)
	}
	pod, err := client.CoreV1().Pods("default").Get(h.t.Context(), h.pods[c].name, metav1.GetOptions{})
	h.must(err)
	var ips, hostIPs []string
	for _, ip := range pod.Status.HostIPs {
		hostIPs = append(hostIPs, ip.IP)
	}
	inside := len(pod.Status.PodIPs) == 2 && len(node.Spec.PodCIDRs) == 2
	for i, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
		inside = inside && netip.MustParsePrefix(node.Spec.PodCIDRs[i]).Contains(netip.MustParseAddr(ip.IP))
	}
	if !inside || !slices.Equal(hostIPs, addresses) {
		h.t.Errorf("the pod of %s: podIPs %v in %v, hostIPs %v, want %v", c.NodeName(), ips, node.Spec.PodCIDRs, hostIPs, addresses)
	}
}

// bothAnswer sends requests until each host's pod has answered.
func (h *hosts) bothAnswer(from dialer, url string) error {
	seen := map[string]bool{}
	for range 40 {
		pod, _, err := fetch(from, url)
		if err != nil {
			return err
		}
		if seen[pod] = true; len(seen) == len(h.all) {
			return nil
		}
	}
	return fmt.Errorf("only %v answered", seen)
}

// findsBoth resolves the Service by the cluster's DNS.
func findsBoth(ctx context.Context, from dialer, want []string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return from(ctx, network, "10.96.0.10:53")
	}}
	var got []string
	for _, network := range []string{"ip4", "ip6"} {
		found, err := resolver.LookupNetIP(ctx, network, "web.default.svc.cluster.local.")
		if err != nil {
			return err
		}
		for _, a := range found {
			got = append(got, a.Unmap().String())
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("found %v, want %v", got, want)
	}
	return nil
}
