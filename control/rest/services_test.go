package rest_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/rest"
	"github.com/balsahq/balsa/raftstore"
)

func service(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Name: "p", Port: 80}}}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func mustCreate(t *testing.T, ns string, s *corev1.Service) *corev1.Service {
	t.Helper()
	out, err := admin.CoreV1().Services(ns).Create(t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create %s: %v", s.Name, err)
	}
	return out
}

func mustUpdate(t *testing.T, s *corev1.Service) *corev1.Service {
	t.Helper()
	out, err := admin.CoreV1().Services(s.Namespace).Update(t.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("update %s: %v", s.Name, err)
	}
	return out
}

func holder(ip string) string { return rest.Claimed(store.View(), ip) }

func TestServiceGetsAnAddressThatIsItsOwnUntilItIsDeleted(t *testing.T) {
	ns := namespace(t)
	s := mustCreate(t, ns, service("web", nil))
	if !netip.MustParsePrefix("10.96.0.0/16").Contains(netip.MustParseAddr(s.Spec.ClusterIP)) {
		t.Fatalf("clusterIP %q", s.Spec.ClusterIP)
	}
	if len(s.Spec.ClusterIPs) != 1 || s.Spec.ClusterIPs[0] != s.Spec.ClusterIP || len(s.Spec.IPFamilies) != 1 ||
		s.Spec.IPFamilyPolicy == nil || *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack || s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
		t.Fatalf("spec not completed: %+v", s.Spec)
	}
	if got := holder(s.Spec.ClusterIP); got != ns+"/web" {
		t.Fatalf("claimed by %q", got)
	}
	addr, err := admin.NetworkingV1().IPAddresses().Get(t.Context(), s.Spec.ClusterIP, metav1.GetOptions{})
	if err != nil || addr.Spec.ParentRef == nil || addr.Spec.ParentRef.Name != "web" || addr.Spec.ParentRef.Namespace != ns {
		t.Fatalf("IPAddress %+v, %v", addr, err)
	}
	if err := admin.CoreV1().Services(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := holder(s.Spec.ClusterIP); got != "" {
		t.Fatalf("still claimed by %q", got)
	}
	if _, err := admin.NetworkingV1().IPAddresses().Get(t.Context(), s.Spec.ClusterIP, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("IPAddress after delete: %v", err)
	}
}

func TestServiceRefusals(t *testing.T) {
	ns := namespace(t)
	taken := mustCreate(t, ns, service("taken", func(s *corev1.ServiceSpec) {
		s.ClusterIP = "10.96.0.77"
		s.Type = "NodePort"
		s.Ports[0].NodePort = 30077
	}))
	if taken.Spec.ClusterIP != "10.96.0.77" || taken.Spec.Ports[0].NodePort != 30077 {
		t.Fatalf("asked for 10.96.0.77:30077, got %s:%d", taken.Spec.ClusterIP, taken.Spec.Ports[0].NodePort)
	}
	dual := corev1.IPFamilyPolicyRequireDualStack
	for name, c := range map[string]struct {
		change func(*corev1.ServiceSpec)
		want   string
	}{
		"address taken":     {func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.77" }, "failed to allocate IP 10.96.0.77: provided IP is already allocated"},
		"address elsewhere": {func(s *corev1.ServiceSpec) { s.ClusterIP = "192.0.2.7" }, "the provided IP (192.0.2.7) is not in the valid range. The range of valid IPs is 10.96.0.0/16"},
		"network address":   {func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.0" }, "is not in the valid range"},
		"broadcast":         {func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.255.255" }, "is not in the valid range"},
		"port taken":        {func(s *corev1.ServiceSpec) { s.Type = "NodePort"; s.Ports[0].NodePort = 30077 }, "provided port is already allocated"},
		"port elsewhere":    {func(s *corev1.ServiceSpec) { s.Type = "NodePort"; s.Ports[0].NodePort = 80 }, "provided port is not in the valid range. The range of valid ports is 30000-32767"},
		"dual stack":        {func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = &dual }, "this cluster is not configured for dual-stack services"},
		"other family":      {func(s *corev1.ServiceSpec) { s.IPFamilies = []corev1.IPFamily{"IPv6"} }, "not configured on this cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			before := kept(store.View())
			_, err := admin.CoreV1().Services(ns).Create(t.Context(), service("bad", c.change), metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want invalid with %q", err, c.want)
			}
			if now := kept(store.View()); !slices.Equal(now, before) {
				t.Fatalf("a refused Service wrote to the store: %v → %v", before, now)
			}
		})
	}
	if _, err := admin.CoreV1().Services(ns).Create(t.Context(), service("taken", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.77" }), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("the same Service again: %v", err)
	}
}

func TestServiceTypeTransitionsClaimAndRelease(t *testing.T) {
	ns := namespace(t)
	s := mustCreate(t, ns, service("s", nil))
	ip := s.Spec.ClusterIP

	s.Spec.Type = corev1.ServiceTypeNodePort
	s = mustUpdate(t, s)
	port := s.Spec.Ports[0].NodePort
	if port < 30000 || port > 32767 || s.Spec.ClusterIP != ip || store.View().Get(fmt.Sprintf("/balsa/nodeports/%d", port)) == nil {
		t.Fatalf("NodePort: %+v", s.Spec)
	}

	again := service("s", func(sp *corev1.ServiceSpec) { sp.Type = corev1.ServiceTypeNodePort }) // the user's manifest, without what was allocated
	again.Namespace, again.ResourceVersion = ns, s.ResourceVersion
	if s = mustUpdate(t, again); s.Spec.ClusterIP != ip || s.Spec.Ports[0].NodePort != port {
		t.Fatalf("a manifest without addresses lost them: %+v", s.Spec)
	}

	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, 0
	s = mustUpdate(t, s)
	if s.Spec.Ports[0].NodePort != 0 || store.View().Get(fmt.Sprintf("/balsa/nodeports/%d", port)) != nil {
		t.Fatalf("node port not released: %+v", s.Spec)
	}

	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "", nil, nil, nil
	s = mustUpdate(t, s)
	if s.Spec.ClusterIP != "" || holder(ip) != "" {
		t.Fatalf("ExternalName keeps %q, %q", s.Spec.ClusterIP, holder(ip))
	}

	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeClusterIP, ""
	s = mustUpdate(t, s)
	if holder(s.Spec.ClusterIP) != ns+"/s" {
		t.Fatalf("back from ExternalName: %+v", s.Spec)
	}
}

func TestHeadlessServicesClaimNothing(t *testing.T) {
	ns := namespace(t)
	s := mustCreate(t, ns, service("h", func(s *corev1.ServiceSpec) { s.ClusterIP = "None" }))
	if s.Spec.ClusterIP != "None" || len(s.Spec.IPFamilies) != 1 {
		t.Fatalf("%+v", s.Spec)
	}
	s = mustCreate(t, ns, service("n", func(s *corev1.ServiceSpec) { s.ClusterIP = "None"; s.Selector = nil }))
	if len(s.Spec.IPFamilies) != 2 || *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack {
		t.Fatalf("headless without selector: %+v", s.Spec)
	}
}

func TestLoadBalancerGetsHealthCheckPortAndSharesPortsOfOneNumber(t *testing.T) {
	ns := namespace(t)
	s := mustCreate(t, ns, service("dns", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
		s.Ports = []corev1.ServicePort{{Name: "u", Port: 53, Protocol: "UDP"}, {Name: "t", Port: 53, Protocol: "TCP"}}
	}))
	if s.Spec.HealthCheckNodePort == 0 || s.Spec.Ports[0].NodePort == 0 || s.Spec.Ports[0].NodePort != s.Spec.Ports[1].NodePort {
		t.Fatalf("%+v", s.Spec)
	}
	if err := admin.CoreV1().Services(ns).Delete(t.Context(), "dns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []int32{s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort} {
		if store.View().Get(fmt.Sprintf("/balsa/nodeports/%d", p)) != nil {
			t.Errorf("port %d not released", p)
		}
	}
}

func TestAFinalizerKeepsTheAddress(t *testing.T) {
	ns := namespace(t)
	s := service("f", nil)
	s.Finalizers = []string{"example.com/keep"}
	s = mustCreate(t, ns, s)
	ip := s.Spec.ClusterIP
	if err := admin.CoreV1().Services(ns).Delete(t.Context(), "f", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if holder(ip) == "" {
		t.Fatal("released while the Service still exists")
	}
	s, err := admin.CoreV1().Services(ns).Get(t.Context(), "f", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Finalizers = nil
	mustUpdate(t, s)
	if holder(ip) != "" {
		t.Fatalf("not released with the Service: %q", holder(ip))
	}
}

// kept are the Services in the store and what they claim, each with when it was written.
func kept(v *raftstore.View) (list []string) {
	for _, prefix := range []string{"/registry/services/specs/", "/balsa/clusterips/", "/balsa/nodeports/"} {
		v.Ascend(prefix, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool {
			list = append(list, fmt.Sprint(kv.Key, " at ", kv.ModRevision))
			return true
		})
	}
	if len(list) == 0 {
		panic("not even the Service of the API is found: the prefixes are wrong")
	}
	return list
}

func TestDryRunClaimsNothing(t *testing.T) {
	ns := namespace(t)
	before := kept(store.View())
	s, err := admin.CoreV1().Services(ns).Create(t.Context(), service("d", nil), metav1.CreateOptions{DryRun: []string{"All"}})
	if err != nil || s.Spec.ClusterIP == "" {
		t.Fatalf("%+v, %v", s, err)
	}
	if !slices.Equal(kept(store.View()), before) {
		t.Fatal("dry run wrote")
	}
}

func TestManyServicesAtOnceGetDifferentAddresses(t *testing.T) {
	ns := namespace(t)
	const n = 60
	ips := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			s, err := admin.CoreV1().Services(ns).Create(t.Context(), service(fmt.Sprintf("s%d", i), nil), metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			ips[i] = s.Spec.ClusterIP
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for i, ip := range ips {
		if seen[ip] || holder(ip) != fmt.Sprintf("%s/s%d", ns, i) {
			t.Errorf("s%d has %s, which belongs to %s", i, ip, holder(ip))
		}
		seen[ip] = true
	}
}

func TestOfManyWhoWantOneAddressOneGetsIt(t *testing.T) {
	ns := namespace(t)
	const n = 12
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, errs[i] = admin.CoreV1().Services(ns).Create(t.Context(), service(fmt.Sprintf("w%d", i), func(s *corev1.ServiceSpec) {
				s.ClusterIP, s.Type, s.Ports[0].NodePort = "10.96.0.99", corev1.ServiceTypeNodePort, 30099
			}), metav1.CreateOptions{})
		})
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		if err == nil {
			won++
			if got := holder("10.96.0.99"); got != fmt.Sprintf("%s/w%d", ns, i) {
				t.Errorf("w%d won, %q holds it", i, got)
			}
		} else if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated") {
			t.Errorf("w%d: %v", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d have it", won)
	}
}

func TestServicesGetAddressesOfEveryReadyServiceCIDR(t *testing.T) {
	ns := namespace(t)
	cidrs := admin.NetworkingV1().ServiceCIDRs()
	cidr, err := cidrs.Create(t.Context(), &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"203.0.113.0/24"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cidrs.Delete(context.Background(), "more", metav1.DeleteOptions{}) })
	ask := func(name, ip string) error {
		_, err := admin.CoreV1().Services(ns).Create(t.Context(), service(name, func(s *corev1.ServiceSpec) { s.ClusterIP = ip }), metav1.CreateOptions{})
		return err
	}
	if err := ask("early", "203.0.113.10"); !apierrors.IsInvalid(err) {
		t.Fatalf("before the network is ready: %v", err)
	}
	cidr.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", LastTransitionTime: metav1.Now()}} // the controller's part
	if cidr, err = cidrs.UpdateStatus(t.Context(), cidr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ask("more", "203.0.113.10"); err != nil {
		t.Fatal(err)
	}
	if a, err := admin.NetworkingV1().IPAddresses().Get(t.Context(), "203.0.113.10", metav1.GetOptions{}); err != nil || a.Spec.ParentRef.Name != "more" {
		t.Fatalf("%v, %v", a, err)
	}
	if err := ask("again", "203.0.113.10"); err == nil || !strings.Contains(err.Error(), "already allocated") {
		t.Fatalf("the same address again: %v", err)
	}
	if err := ask("network", "203.0.113.255"); err == nil || !strings.Contains(err.Error(), "The range of valid IPs is 10.96.0.0/16, 203.0.113.0/24") {
		t.Fatalf("the broadcast address: %v", err)
	}
}

type warnings struct{ list []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.list = append(w.list, text) }

func TestWhoGivesAServiceAnAddressOfOthersIsWarned(t *testing.T) {
	ns := namespace(t)
	node, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "warned"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.CoreV1().Nodes().Delete(context.Background(), "warned", metav1.DeleteOptions{}) })
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.200"}}
	if _, err := admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	heard := &warnings{}
	config := restclient.CopyConfig(server.Client(control.Identity{User: "admin", Groups: []string{"system:masters"}}))
	config.WarningHandler = heard
	services := kubernetes.NewForConfigOrDie(config).CoreV1().Services(ns)
	svc, err := services.Create(t.Context(), service("s", func(s *corev1.ServiceSpec) {
		s.ExternalIPs = []string{"192.0.2.200", "10.96.7.7", "203.0.113.7"}
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(heard.list, "\n")
	for want, said := range map[string]bool{"192.0.2.200 is the address of node warned": true, "10.96.7.7 is in the network of Services": true, "203.0.113.7 is": false} {
		if strings.Contains(text, want) != said {
			t.Errorf("%q in %q: %v", want, text, !said)
		}
	}
	heard.list, svc.Labels = nil, map[string]string{"a": "b"}
	if _, err := services.Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil || strings.Contains(strings.Join(heard.list, ""), "of node") {
		t.Errorf("told again: %v, %v", heard.list, err)
	}
}
