package speaker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestAddressesAreReachedThroughOneNodeEachAndMoveWhenItGoes(t *testing.T) {
	l := newLAN(t, "n1", "n2", "n3")
	for i := range 6 {
		l.create(service(fmt.Sprint("s", i), fmt.Sprint("192.0.2.", 200+i), fmt.Sprint("2001:db8::", 200+i)))
	}
	before := map[string]string{}
	for i := range 6 {
		a, b := fmt.Sprint("192.0.2.", 200+i), fmt.Sprint("2001:db8::", 200+i)
		before[a] = l.reached(a, l.only(a))
		before[b] = l.reached(b, l.holder(b))
	}
	gone := before[vip]
	l.client.Run("ip", "link", "set", gone, "down") // its cable
	l.setNode(l.api, gone, false)
	// Who has spoken with an address hears where it went, without asking.
	for a, was := range before {
		l.eventually(a+" is known elsewhere", func() bool {
			entry := l.client.Run("ip", "neigh", "show", a)
			return was != gone || slices.ContainsFunc(l.others(gone), func(n string) bool { return strings.Contains(entry, l.nodes[n].mac) })
		})
	}
	for a, was := range before {
		if was != gone {
			if now := l.client.ask("[" + a + "]:80"); now != was {
				t.Errorf("%s moved from %s to %s, which did not go", a, was, now)
			}
			continue
		}
		l.reached(a, l.others(gone)...)
	}
	// It comes back, and has what it had.
	l.client.Run("ip", "link", "set", gone, "up")
	l.setNode(l.api, gone, true)
	for a, was := range before {
		l.reached(a, was)
	}
	l.eventually("one answer", func() bool { return slices.Equal(l.who(vip), []string{gone}) })
}

func TestNodesThatMayNotHaveAddressesDoNot(t *testing.T) {
	l := newLAN(t, "n1", "n2")
	l.create(service("web", vip))
	first := l.only(vip)
	second := l.others(first)[0]
	l.setNode(l.api, first, true, func(n *v1.Node) { n.Labels = map[string]string{v1.LabelNodeExcludeBalancers: ""} })
	l.reached(vip, second)
	l.setNode(l.api, first, true, func(n *v1.Node) { n.Labels = nil })
	l.reached(vip, first)
	l.setNode(l.api, first, true, func(n *v1.Node) {
		n.Spec.Taints = []v1.Taint{{Key: autoscalerTaint, Effect: v1.TaintEffectNoSchedule}}
	})
	l.reached(vip, second)
}

func TestPolicyLocalFollowsTheEndpoints(t *testing.T) {
	l := newLAN(t, "n1", "n2", "n3")
	s := service("web", vip)
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	l.create(s)
	slices := l.api.DiscoveryV1().EndpointSlices("d")
	if _, err := slices.Create(t.Context(), endpoints("web", "n2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.reached(vip, "n2")
	if _, err := slices.Update(t.Context(), endpoints("web", "n3"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.reached(vip, "n3")
	if _, err := slices.Update(t.Context(), endpoints("web"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.eventually("no answer", func() bool { return len(l.who(vip)) == 0 })
}

func TestNothingIsOpenWithoutAddressesAndOnlyOursAreAnnounced(t *testing.T) {
	l := newLAN(t, "n1")
	foreign := service("foreign", "192.0.2.201")
	foreign.Status.Conditions = nil
	l.create(foreign)
	l.create(service("elsewhere", "198.51.100.7"))
	l.create(service("web", vip))
	l.reached(vip, "n1")
	for _, a := range []string{"192.0.2.201", "198.51.100.7", "192.0.2.203"} {
		if names := l.who(a); len(names) > 0 {
			t.Errorf("%v answers for %s", names, a)
		}
	}
	if n := l.nodes["n1"].sockets(); n != 1 {
		t.Errorf("%d packet sockets for one address", n)
	}
	if err := l.api.CoreV1().Services("d").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.eventually("all closed", func() bool { return l.nodes["n1"].sockets() == 0 })
}

func TestALinkThatComesBackAndANewAddressOfIt(t *testing.T) {
	l := newLAN(t, "n1")
	l.create(service("web", vip, vip6))
	l.reached(vip, "n1")
	n := l.nodes["n1"]
	n.Run("ip", "link", "set", "eth0", "down")
	l.eventually("silent", func() bool { return n.sockets() == 0 })
	n.mac = "02:00:00:00:02:02"
	n.Run("ip", "link", "set", "eth0", "address", n.mac)
	n.Run("ip", "link", "set", "eth0", "up")
	n.Run("ip", "addr", "replace", "2001:db8::11/64", "dev", "eth0", "nodad")
	l.reached(vip, "n1")
	l.reached(vip6, "n1")
	l.only(vip)
}

func TestANodeCutOffFromTheAPIYieldsToWhoClaimsItsAddress(t *testing.T) {
	l := newLAN(t, "n1", "n2")
	l.create(service("web", vip))
	first := l.only(vip)
	second := l.others(first)[0]
	cut := l.nodes[first]
	cut.stop()
	// From here on it sees the cluster as it was.
	cut.api = frozen(t, l.api)
	cut.confirm = func(context.Context) error { return errors.New("no server can be reached") }
	cut.start()
	l.eventually("it goes on", func() bool { return slices.Equal(l.who(vip), []string{first}) })
	l.setNode(l.api, first, false)
	l.reached(vip, second)
	l.eventually("it yields", func() bool { return slices.Equal(l.who(vip), []string{second}) })
}

func TestAnAddressOfTheOwnIsDefended(t *testing.T) {
	l := newLAN(t, "n1", "n2")
	l.create(service("web", vip))
	first := l.only(vip)
	second := l.others(first)[0]
	// The other thinks that it is alone.
	wrong := l.nodes[second]
	wrong.stop()
	wrong.api = frozen(t, l.api)
	l.setNode(wrong.api, first, false)
	wrong.confirm = func(context.Context) error { return errors.New("no server can be reached") }
	wrong.start()
	l.eventually("the right one is left", func() bool { return slices.Equal(l.who(vip), []string{first}) })
	l.reached(vip, first)
}

// frozen is another API with the same objects.
func frozen(t *testing.T, api *fake.Clientset) *fake.Clientset {
	t.Helper()
	other := fake.NewClientset()
	nodes, err := api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		if _, err := other.CoreV1().Nodes().Create(t.Context(), &nodes.Items[i], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	services, err := api.CoreV1().Services("d").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range services.Items {
		if _, err := other.CoreV1().Services("d").Create(t.Context(), &services.Items[i], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return other
}
