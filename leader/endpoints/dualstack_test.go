package endpoints

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// TestSlicesFollowTheServicesFamilies: a Service has slices of each of its families, made from status.podIPs, and of no
// other, also when it changes between one family and two; a pod that has an address of one family only is in the slices of
// that one.
func TestSlicesFollowTheServicesFamilies(t *testing.T) {
	families := func(headless bool, list ...v1.IPFamily) *v1.Service {
		return service(func(s *v1.Service) {
			s.Spec.IPFamilies = list
			if headless {
				s.Spec.ClusterIP = v1.ClusterIPNone
			}
		})
	}
	old := pod(3, true)
	old.Status.PodIPs = old.Status.PodIPs[:1]
	ipv4 := []string{"10.244.0.2", "10.244.0.3", "10.244.0.4"}
	ipv6 := []string{"fd00::2", "fd00::3"}
	for _, headless := range []bool{false, true} {
		t.Run(fmt.Sprintf("headless=%t", headless), func(t *testing.T) {
			client := startSlices(t, families(headless, v1.IPv4Protocol), pod(1, true), pod(2, true), old)
			awaitSlices(t, client, map[discoveryv1.AddressType][]string{discoveryv1.AddressTypeIPv4: ipv4})
			for i, step := range []struct {
				families []v1.IPFamily
				want     map[discoveryv1.AddressType][]string
			}{
				{[]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, map[discoveryv1.AddressType][]string{discoveryv1.AddressTypeIPv4: ipv4, discoveryv1.AddressTypeIPv6: ipv6}},
				{[]v1.IPFamily{v1.IPv4Protocol}, map[discoveryv1.AddressType][]string{discoveryv1.AddressTypeIPv4: ipv4}},
				{[]v1.IPFamily{v1.IPv6Protocol}, map[discoveryv1.AddressType][]string{discoveryv1.AddressTypeIPv6: ipv6}},
			} {
				changed := families(headless, step.families...)
				changed.ResourceVersion = fmt.Sprint(i + 1) // the tracker gives none
				if _, err := client.CoreV1().Services("ns").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				awaitSlices(t, client, step.want)
			}
		})
	}
}

// startSlices runs the controller of slices among the objects until the test ends.
func startSlices(t *testing.T, objects ...runtime.Object) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset(append(objects, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{v1.LabelTopologyZone: "east"}}})...)
	made := 0
	client.PrependReactor("create", "endpointslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		slice := a.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice)
		made++
		slice.UID, slice.Name, slice.Generation = types.UID(fmt.Sprint("slice", made)), fmt.Sprint("web-", made), 1
		return false, nil, nil // the tracker takes it
	})
	workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return NewSlices(e, 1) })
	return client
}

// awaitSlices waits until the slices of each family hold exactly these addresses.
func awaitSlices(t *testing.T, client *fake.Clientset, want map[discoveryv1.AddressType][]string) {
	t.Helper()
	sets := func(in map[discoveryv1.AddressType][]string) map[string]bool {
		out := map[string]bool{}
		for family, list := range in {
			for _, a := range list {
				out[string(family)+" "+a] = true
			}
		}
		return out
	}
	var got map[discoveryv1.AddressType][]string
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := client.DiscoveryV1().EndpointSlices("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		got = map[discoveryv1.AddressType][]string{}
		for i := range list.Items {
			for _, e := range list.Items[i].Endpoints {
				got[list.Items[i].AddressType] = append(got[list.Items[i].AddressType], e.Addresses...)
			}
		}
		return maps.Equal(sets(got), sets(want)), nil
	})
	if err != nil {
		t.Fatalf("slices hold %v, want %v", got, want)
	}
}

func TestTrafficDistributionGivesHints(t *testing.T) {
	near := service(func(s *v1.Service) { s.Spec.TrafficDistribution = ptr.To(v1.ServiceTrafficDistributionPreferSameZone) })
	client := startSlices(t, near, pod(1, true))
	workqueuetest.Eventually(t, "a hint for the zone, and the port that targetPort names", func(ctx context.Context) (bool, error) {
		list, err := client.DiscoveryV1().EndpointSlices("ns").List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || len(list.Items[0].Endpoints) != 1 {
			return false, err
		}
		s, e := list.Items[0], list.Items[0].Endpoints[0]
		return len(s.Ports) == 1 && *s.Ports[0].Port == 8080 && e.Zone != nil && *e.Zone == "east" &&
			e.Hints != nil && len(e.Hints.ForZones) == 1 && e.Hints.ForZones[0].Name == "east", nil
	})
}
