package endpoints

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func service(change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: map[string]string{"team": "a"}}, Spec: v1.ServiceSpec{
		ClusterIP: "10.96.0.7", IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, Selector: map[string]string{"app": "web"},
		Ports: []v1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http"), Protocol: v1.ProtocolTCP}},
	}}
	for _, f := range change {
		f(s)
	}
	return s
}

func pod(i int, ready bool) *v1.Pod {
	status := v1.ConditionFalse
	if ready {
		status = v1.ConditionTrue
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{NodeName: "n", Containers: []v1.Container{{Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: v1.ProtocolTCP}}}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: fmt.Sprintf("10.244.%d.%d", i/250, i%250+1), PodIPs: []v1.PodIP{{IP: fmt.Sprintf("10.244.%d.%d", i/250, i%250+1)}, {IP: fmt.Sprintf("fd00::%x", i+1)}},
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: status}}},
	}
}

func TestReadyAndNotReadyAreListedApart(t *testing.T) {
	got := subsets(service(), []*v1.Pod{pod(1, true), pod(2, false)})
	if len(got) != 1 || len(got[0].Addresses) != 1 || len(got[0].NotReadyAddresses) != 1 || got[0].Ports[0].Port != 8080 || got[0].Addresses[0].TargetRef.Name != "p1" {
		t.Fatalf("%+v", got)
	}
	got = subsets(service(func(s *v1.Service) { s.Spec.PublishNotReadyAddresses = true }), []*v1.Pod{pod(1, true), pod(2, false)})
	if len(got[0].Addresses) != 2 {
		t.Fatalf("%+v", got)
	}
}

func TestAddressesAreOfTheServicesFamily(t *testing.T) {
	got := subsets(service(func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol} }), []*v1.Pod{pod(1, true)})
	if got[0].Addresses[0].IP != "fd00::2" {
		t.Fatalf("%+v", got)
	}
}

func TestHeadlessServicesNeedNoPorts(t *testing.T) {
	headless := service(func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.Ports = v1.ClusterIPNone, nil })
	e := desired(headless, []*v1.Pod{pod(1, true)}, nil)
	if _, ok := e.Labels[v1.IsHeadlessService]; !ok || len(e.Subsets) != 1 || len(e.Subsets[0].Ports) != 0 || e.Labels["team"] != "a" || e.Labels[labelManagedBy] != managedBy {
		t.Fatalf("%+v", e)
	}
	if _, ok := desired(service(), nil, nil).Labels[v1.IsHeadlessService]; ok {
		t.Fatal("a Service with an address is called headless")
	}
}

func TestNothingIsWrittenTwice(t *testing.T) {
	list := []*v1.Pod{pod(1, true), pod(2, false)}
	e := desired(service(), list, nil)
	if again := desired(service(), []*v1.Pod{list[1], list[0]}, e); again != nil {
		t.Fatalf("%+v", again)
	}
}

func TestTooManyAddressesAreCutReadyOnesLast(t *testing.T) {
	var list []*v1.Pod
	for i := range capacity + 10 {
		list = append(list, pod(i, i >= 20))
	}
	e := desired(service(), list, nil)
	ready, notReady := 0, 0
	for _, s := range e.Subsets {
		ready, notReady = ready+len(s.Addresses), notReady+len(s.NotReadyAddresses)
	}
	if ready != capacity-10 || notReady != 10 || e.Annotations[v1.EndpointsOverCapacity] != "truncated" {
		t.Fatal(ready, notReady, e.Annotations)
	}
}

func TestOnlyChangesOfAnAddressMatter(t *testing.T) {
	a, b := pod(1, true), pod(1, true)
	b.ResourceVersion = "2"
	b.Annotations = map[string]string{"x": "y"}
	if matters(a, b) {
		t.Fatal("an annotation matters")
	}
	if !matters(a, pod(1, false)) {
		t.Fatal("readiness does not matter")
	}
}

func TestHandWrittenEndpointsAreMirroredByFamily(t *testing.T) {
	e := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ext", UID: "e", Labels: map[string]string{"a": "b"}}, Subsets: []v1.EndpointSubset{{
		Addresses:         []v1.EndpointAddress{{IP: "10.1.2.3"}, {IP: "fd00::1"}},
		NotReadyAddresses: []v1.EndpointAddress{{IP: "10.1.2.4"}},
		Ports:             []v1.EndpointPort{{Port: 80, Protocol: v1.ProtocolTCP}},
	}}}
	got, err := copies(e)
	if err != nil || len(got) != 2 {
		t.Fatalf("%v %v", got, err)
	}
	total := 0
	for _, s := range got {
		total += len(s.Endpoints)
		if s.Labels["a"] != "b" || s.Labels["kubernetes.io/service-name"] != "ext" || *s.Ports[0].Port != 80 || s.OwnerReferences[0].UID != "e" {
			t.Errorf("%+v", s)
		}
	}
	if total != 3 {
		t.Fatal(total)
	}
	bare := service(func(s *v1.Service) { s.Spec.Selector = nil })
	if !mirrored(bare, e) || mirrored(service(), e) || mirrored(nil, e) {
		t.Fatal("wrong Services")
	}
	e.Labels["endpointslice.kubernetes.io/skip-mirror"] = "true"
	if mirrored(bare, e) {
		t.Fatal("the wish not to be mirrored is ignored")
	}
}
