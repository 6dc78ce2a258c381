package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func cidr(name string, networks ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{finalizer}}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: networks},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: "Ready", Status: "True"}}}}
}

func ending(c *networkingv1.ServiceCIDR, since time.Time) *networkingv1.ServiceCIDR {
	c.DeletionTimestamp = &metav1.Time{Time: since}
	return c
}

func service(ips ...string) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: v1.ServiceSpec{ClusterIPs: ips}}
}

func TestAnEndingNetworkStaysAsLongAsAServiceHasAnAddressOfItAlone(t *testing.T) {
	now := time.Now()
	long := now.Add(-time.Hour)
	for name, c := range map[string]struct {
		since    time.Time
		service  *v1.Service
		others   []*networkingv1.ServiceCIDR
		release  bool
		again    bool
		orphaned bool
	}{
		"nobody has an address of it":         {long, service("10.96.0.7"), nil, true, false, false},
		"nobody has, and it was asked for":    {now, service("10.96.0.7"), nil, false, true, false},
		"a Service has":                       {long, service("203.0.113.9"), nil, false, false, true},
		"a Service has it as its second":      {long, service("fd00::1", "203.0.113.9"), nil, false, false, true},
		"another network holds it too":        {long, service("203.0.113.9"), []*networkingv1.ServiceCIDR{cidr("b", "203.0.0.0/16")}, true, false, false},
		"the other holds it no longer either": {long, service("203.0.113.9"), []*networkingv1.ServiceCIDR{ending(cidr("b", "203.0.0.0/16"), long)}, false, false, true},
		"a headless Service":                  {long, service("None"), nil, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			mine := ending(cidr("a", "203.0.113.0/24"), c.since)
			v := judge(mine, cluster{services: []*v1.Service{c.service}, cidrs: append(c.others, mine)}, now)
			orphaned := v.ready != nil && v.ready.Reason == networkingv1.ServiceCIDRReasonTerminating && strings.Contains(v.ready.Message, "ns/s")
			if v.release != c.release || v.again > 0 != c.again || orphaned != c.orphaned {
				t.Fatalf("%+v", v)
			}
		})
	}
}

func TestANetworkThatHoldsAddressesOfOthersIsNotReady(t *testing.T) {
	in := cluster{
		pods:  []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		nodes: []*v1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: "InternalIP", Address: "192.0.2.1"}}}}},
	}
	for network, want := range map[string]string{"10.244.3.0/24": "the pods' network", "10.0.0.0/8": "the pods' network", "192.0.2.0/28": "of node n1", "203.0.113.0/24": ""} {
		fresh := cidr("a", network)
		fresh.Status.Conditions = nil
		v := judge(fresh, in, time.Now())
		if ready := v.ready.Status == metav1.ConditionTrue; ready != (want == "") || !strings.Contains(v.ready.Message, want) {
			t.Errorf("%s: %+v", network, v.ready)
		}
	}
	if v := judge(cidr("a", "192.0.2.0/28"), in, time.Now()); v.ready.Status != metav1.ConditionTrue {
		t.Error("a node that joins with a Service's address takes the network from Services")
	}
}

func TestAServiceCIDRGetsReadyAndGoesWhenItsLastServiceDoes(t *testing.T) {
	fresh := cidr("a", "203.0.113.0/24")
	fresh.Finalizers, fresh.Status.Conditions = nil, nil
	svc := service("203.0.113.9")
	client := fake.NewClientset(fresh, svc)
	workqueuetest.Start(t, client, func(env workqueue.Env) (workqueue.Runner, error) { return New(env, 1, nil) })
	get := func(ctx context.Context) *networkingv1.ServiceCIDR {
		c, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	workqueuetest.Eventually(t, "ready, and kept", func(ctx context.Context) (bool, error) {
		c := get(ctx)
		return slices.Contains(c.Finalizers, finalizer) && meta.IsStatusConditionTrue(c.Status.Conditions, "Ready"), nil
	})
	gone := ending(get(t.Context()), time.Now().Add(-time.Hour))
	if _, err := client.NetworkingV1().ServiceCIDRs().Update(t.Context(), gone, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "said why it stays", func(ctx context.Context) (bool, error) {
		return meta.IsStatusConditionFalse(get(ctx).Status.Conditions, "Ready"), nil
	})
	if err := client.CoreV1().Services("ns").Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "released", func(ctx context.Context) (bool, error) { return len(get(ctx).Finalizers) == 0, nil })
}
