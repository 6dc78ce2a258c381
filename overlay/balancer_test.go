package overlay

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/balsahq/balsa/overlay/routes"
	"github.com/balsahq/balsa/overlay/speaker"
)

// speak starts the announcer of a node.
func (l *lan) speak(m *member) {
	l.t.Helper()
	factory := informers.NewSharedInformerFactory(l.client, 0)
	a, err := speaker.New(speaker.Config{
		NodeName: m.name, Informers: factory, NetNS: m.host.Path, Inside: append(m.cfg.PodCIDRs, m.cfg.ServiceCIDRs...),
		Logger: slog.New(slog.NewTextHandler(l.t.Output(), nil)).With("on", m.name),
		Publish: func(ctx context.Context, key, value string) error {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
			_, err := l.client.CoreV1().Nodes().Patch(ctx, m.name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			return err
		},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Errorf("the announcer returned %v", err)
		}
		factory.Shutdown()
	})
}

// wellness says whether a node is ready.
func (l *lan) wellness(m *member, state v1.ConditionStatus) {
	l.t.Helper()
	// A patch: the announcer writes the same object.
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, state)
	if _, err := l.client.CoreV1().Nodes().Patch(l.t.Context(), m.name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// through is the node whose link-layer address the router has for the address.
func (l *lan) through(address string) *member {
	table := l.router.Run("ip", "neigh", "show", address)
	for _, m := range l.nodes {
		if link, err := linkByName(m.host, "eth0"); err == nil && strings.Contains(table, link.Attrs().HardwareAddr.String()) {
			return m
		}
	}
	return nil
}

func TestALoadBalancerIsReachedThroughWhoeverAnnouncesIt(t *testing.T) {
	l := newLAN(t, routes.Auto)
	for _, m := range l.nodes {
		l.speak(m)
		l.wellness(m, v1.ConditionTrue)
	}
	// One address on each subnet, and a backend on the second: packets to the first go on to it from another node.
	backend := l.nodes[2]
	l.service("web", "10.96.0.20", 30080, backend)
	svc, err := l.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	svc.Spec.Type = v1.ServiceTypeLoadBalancer
	svc.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.50"}, {IP: "192.0.2.200"}}
	svc.Status.Conditions = []metav1.Condition{{Type: speaker.Condition, Status: metav1.ConditionTrue}}
	if _, err := l.client.CoreV1().Services("default").Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.reached(l.router, "192.0.2.50:80", "pod-n3")
	l.reached(l.router, "192.0.2.200:80", "pod-n3")
	for _, m := range l.nodes {
		l.reached(m.pod, "192.0.2.50:80", "pod-n3")
	}
	// Of the two on its subnet n1 is to have it, by the hash of address and name; n2 may, until it has heard of n1.
	holder := l.nodes[0]
	l.eventually("it is at "+holder.name, func() bool { return l.through("192.0.2.50") == holder })
	l.router.Run("ip", "link", "set", holder.name, "down") // its cable
	l.wellness(holder, v1.ConditionUnknown)
	l.reached(l.router, "192.0.2.50:80", "pod-n3")
	if now := l.through("192.0.2.50"); now == nil || now == holder {
		t.Fatalf("192.0.2.50 is still at %v", now)
	}
	l.router.Run("ip", "link", "set", holder.name, "up")
	l.wellness(holder, v1.ConditionTrue)
	l.eventually("it is back", func() bool {
		_, _, err := l.router.ask("tcp", "192.0.2.50:80")
		return err == nil && l.through("192.0.2.50") == holder
	})
}
