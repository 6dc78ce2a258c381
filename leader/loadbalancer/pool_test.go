package loadbalancer

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/cloud"
	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

type cluster struct {
	*fake.Clientset
	t      *testing.T
	events <-chan string
}

func start(t *testing.T, pools string, objects ...runtime.Object) cluster {
	t.Helper()
	c := cluster{Clientset: fake.NewClientset(objects...), t: t}
	c.events = workqueuetest.Start(t, c, func(e workqueue.Env) (workqueue.Runner, error) {
		return New(e, Config{Pools: pools, Taken: map[string]netip.Prefix{"network of pods": netip.MustParsePrefix("10.244.0.0/16")}})
	})
	return c
}

func service(name string, with ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Unix(int64(name[0]), 0)},
		Spec:       v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, IPFamilies: []v1.IPFamily{v1.IPv4Protocol}},
	}
	for _, f := range with {
		f(s)
	}
	return s
}

func (c cluster) create(s *v1.Service) {
	c.t.Helper()
	if _, err := c.CoreV1().Services("d").Create(c.t.Context(), s, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// change updates a Service as a user would.
func (c cluster) change(name string, f func(*v1.Service)) {
	c.t.Helper()
	s, err := c.CoreV1().Services("d").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	f(s)
	if _, err := c.CoreV1().Services("d").Update(c.t.Context(), s, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// shows waits until the Service tells addresses and reason.
func (c cluster) shows(name, addresses, reason string) {
	c.t.Helper()
	got := ""
	err := wait.PollUntilContextTimeout(c.t.Context(), 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		s, err := c.CoreV1().Services("d").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			got = err.Error()
			return false, nil
		}
		var have []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IPMode == nil || *in.IPMode != v1.LoadBalancerIPModeVIP {
				c.t.Errorf("%s is not marked as a VIP", in.IP)
			}
			have = append(have, in.IP)
		}
		got = strings.Join(have, "+")
		if cond := meta.FindStatusCondition(s.Status.Conditions, Condition); cond != nil {
			got += " " + cond.Reason
			if !slices.Contains(s.Finalizers, cloud.Finalizer) {
				c.t.Errorf("%s was taken on without the finalizer", name)
			}
		}
		return got == addresses+" "+reason || reason == "" && got == addresses, nil
	})
	if err != nil {
		c.t.Fatalf("%s shows %q, want %q %s", name, got, addresses, reason)
	}
}

func pool(text string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ConfigNamespace, Name: ConfigName}, Data: map[string]string{ConfigKey: text}}
}

func (c cluster) setPools(text string) {
	c.t.Helper()
	if _, err := c.CoreV1().ConfigMaps(ConfigNamespace).Update(c.t.Context(), pool(text), metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func TestAFullPoolServesWhoWaitsWhenAnAddressIsFree(t *testing.T) {
	c := start(t, "192.0.2.10-192.0.2.11", service("a"), service("b"), service("c"))
	c.shows("a", "192.0.2.10", ReasonAssigned)
	c.shows("b", "192.0.2.11", ReasonAssigned)
	c.shows("c", "", ReasonFull)
	// What an API server makes of a deletion: the finalizer keeps the object until the controller has let go.
	c.change("a", func(s *v1.Service) { now := metav1.Now(); s.DeletionTimestamp = &now })
	c.shows("c", "192.0.2.10", ReasonAssigned)
	c.shows("a", "", "")
	if s, err := c.CoreV1().Services("d").Get(t.Context(), "a", metav1.GetOptions{}); err == nil && len(s.Finalizers) > 0 {
		t.Fatalf("finalizers %v are left", s.Finalizers)
	}
	var told []string
	for len(c.events) > 0 {
		told = append(told, <-c.events)
	}
	full := slices.DeleteFunc(told, func(e string) bool { return !strings.Contains(e, ReasonFull) })
	if len(full) != 1 {
		t.Errorf("the full pool is told %d times: %q", len(full), full)
	}
}

func TestAServiceThatBecomesAnotherTypeGivesItsAddressBack(t *testing.T) {
	c := start(t, "192.0.2.10", service("a"), service("b"))
	c.shows("a", "192.0.2.10", ReasonAssigned) // the fake API lets an update of the type undo a status that is written meanwhile
	c.shows("b", "", ReasonFull)
	c.change("a", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP })
	c.shows("a", "", "")
	c.shows("b", "192.0.2.10", ReasonAssigned)
}

func TestAddressesAskedForByName(t *testing.T) {
	c := start(t, "192.0.2.10-192.0.2.20,2001:db8::/120", service("a", func(s *v1.Service) {
		s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}
		s.Annotations = map[string]string{AddressesAnnotation: "192.0.2.15, 2001:db8::7"}
	}), service("b", func(s *v1.Service) { s.Spec.LoadBalancerIP = "192.0.2.15" }),
		service("c", func(s *v1.Service) { s.Spec.LoadBalancerIP = "nonsense" }))
	c.shows("a", "2001:db8::7+192.0.2.15", ReasonAssigned)
	c.shows("b", "", ReasonTaken)
	c.shows("c", "", ReasonInvalid)
	c.change("a", func(s *v1.Service) { s.Annotations = nil })
	c.shows("a", "2001:db8::7+192.0.2.15", ReasonAssigned)
	c.change("a", func(s *v1.Service) { s.Annotations = map[string]string{AddressesAnnotation: "192.0.2.16"} })
	c.shows("a", "2001:db8::7+192.0.2.16", ReasonAssigned)
	c.shows("b", "192.0.2.15", ReasonAssigned)
}

func TestPoolsChangeWhileTheClusterRuns(t *testing.T) {
	c := start(t, "192.0.2.99", pool("192.0.2.10"), service("a"), service("b"))
	c.shows("a", "192.0.2.10", ReasonAssigned)
	c.shows("b", "", ReasonFull)
	c.setPools("192.0.2.10-192.0.2.11")
	c.shows("b", "192.0.2.11", ReasonAssigned)
	c.setPools("192.0.2.11-192.0.2.12")
	c.shows("a", "192.0.2.12", ReasonAssigned)
	c.setPools("192.0.2.11, 10.244.0.0/24") // reaches into the pods' network
	c.create(service("c"))
	c.shows("c", "", ReasonFull)
	c.shows("a", "192.0.2.12", ReasonAssigned)
	if err := c.CoreV1().ConfigMaps(ConfigNamespace).Delete(t.Context(), ConfigName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.shows("a", "192.0.2.99", ReasonAssigned) // what the flag says
	c.shows("b", "", ReasonFull)
}

func TestPoolsNobodyCanReadTakeNothingAway(t *testing.T) {
	c := start(t, "192.0.2.99", pool("what?"), service("a", func(s *v1.Service) {
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.10", IPMode: new(v1.LoadBalancerIPModeVIP)}}
		s.Status.Conditions = []metav1.Condition{{Type: Condition, Status: metav1.ConditionTrue, Reason: ReasonAssigned}}
		s.Finalizers = []string{cloud.Finalizer}
	}), service("b"))
	c.shows("b", "", ReasonNoPool)
	c.shows("a", "192.0.2.10", ReasonAssigned)
}

func TestServicesOfOthersAreLeftAlone(t *testing.T) {
	class := func(name string) func(*v1.Service) { return func(s *v1.Service) { s.Spec.LoadBalancerClass = &name } }
	c := start(t, "", service("a"), service("b", class("example.com/other")), service("c", class(Class)))
	c.shows("c", "", ReasonNoPool)
	for _, name := range []string{"a", "b"} {
		if s, err := c.CoreV1().Services("d").Get(t.Context(), name, metav1.GetOptions{}); err != nil || len(s.Status.Conditions)+len(s.Finalizers) > 0 {
			t.Errorf("%s was touched: %+v %v", name, s, err)
		}
	}
}
