package scheduler

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
)

const driver = "gpu.example.com"

func newDevice(name, model string) resourceapi.Device {
	return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: &model}}}
}

func newSlice(node string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-slice"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}, Devices: devices,
	}}
}

func newDeviceClass(name string, with ...func(*resourceapi.DeviceClass)) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range with {
		f(c)
	}
	return c
}

// newDeviceClaim asks for one device of class "gpu" per expression; "" is any.
func newDeviceClaim(name string, expressions ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	for i, e := range expressions {
		r := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
		if e != "" {
			r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: e}}}
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "r" + string(rune('0'+i)), Exactly: r})
	}
	return c
}

// allocated gives a claim devices of a node.
func allocated(c *resourceapi.ResourceClaim, node string, devices ...string) *resourceapi.ResourceClaim {
	c.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "r0", Driver: driver, Pool: node, Device: d})
	}
	return c
}

func using(claims ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, c := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: c, ResourceClaimName: &c})
		}
	}
}

func asking(name string, amount string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceName(name): resource.MustParse(amount)}
	}
}

const isBig = `device.attributes["gpu.example.com"].model == "big"`

func TestDevicesDecideAboutNodes(t *testing.T) {
	a, b := schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "8", "8Gi")
	class, small, big := newDeviceClass("gpu"), newSlice("a", newDevice("a0", "small")), newSlice("b", newDevice("b0", "big"))
	extended := newDeviceClass("gpu", func(c *resourceapi.DeviceClass) { c.Spec.ExtendedResourceName = new("example.com/gpu") })
	for name, c := range map[string]struct {
		pod     *v1.Pod
		objects []runtime.Object
		want    string // a node, or why there is none
	}{
		"the device that matches": {schedulertest.Pod("p", using("c")), []runtime.Object{a, b, class, small, big, newDeviceClaim("c", isBig)}, "b"},
		"no claim": {schedulertest.Pod("p", using("c")), []runtime.Object{a, b, class},
			`0/2 nodes are available: resourceclaim.resource.k8s.io "c" not found.`},
		"no class": {schedulertest.Pod("p", using("c")), []runtime.Object{a, small, newDeviceClaim("c", "")},
			`0/1 nodes are available: request r0: device class gpu does not exist.`},
		"taken by another claim": {schedulertest.Pod("p", using("c")),
			[]runtime.Object{a, b, class, small, big, newDeviceClaim("c", isBig), allocated(newDeviceClaim("d", ""), "b", "b0")},
			`0/2 nodes are available: 2 cannot allocate all claims.`},
		"two claims for one device": {schedulertest.Pod("p", using("c", "d")), []runtime.Object{a, class, small, newDeviceClaim("c", ""), newDeviceClaim("d", "")},
			`0/1 nodes are available: 1 cannot allocate all claims.`},
		"a shared claim stays where it is": {schedulertest.Pod("p", using("c")), []runtime.Object{a, b, class, small, big, allocated(newDeviceClaim("c", ""), "a", "a0")}, "a"},
		"a claim that is elsewhere": {schedulertest.Pod("p", using("c")), []runtime.Object{b, class, small, big, allocated(newDeviceClaim("c", ""), "a", "a0")},
			`0/1 nodes are available: 1 resourceclaim not available on the node.`},
		"an extended resource": {schedulertest.Pod("p", asking("example.com/gpu", "1")), []runtime.Object{a, b, extended, big}, "b"},
		"an implicit extended resource": {schedulertest.Pod("p", asking("deviceclass.resource.kubernetes.io/gpu", "1")), []runtime.Object{a, b, extended, big},
			"b"},
		"an extended resource without a class": {schedulertest.Pod("p", asking("example.com/fpga", "1")), []runtime.Object{a, extended, small},
			`0/1 nodes are available: 1 Insufficient example.com/fpga.`},
		"too much of an extended resource": {schedulertest.Pod("p", asking("example.com/gpu", "2")), []runtime.Object{a, b, extended, small, big},
			`0/2 nodes are available: 2 cannot allocate all claims.`},
	} {
		t.Run(name, func(t *testing.T) {
			v := testDecider().decide(cycleFor(c.pod, c.objects...))
			got := ""
			if v.node != nil {
				got = v.node.Name()
			} else {
				got = v.explain(slices.IndexFunc(append(c.objects, class), func(o runtime.Object) bool { _, is := o.(*v1.Node); return !is }))
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A selector that fails on one device is a mistake of the user's. On the other node the pod would run and hide it.
func TestASelectorThatFailsOnOneNodeKeepsThePodFromAll(t *testing.T) {
	model := resourceapi.Device{Name: "x", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"exists": {BoolValue: new(true)}}}
	cycle := cycleFor(schedulertest.Pod("p", using("c")), schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "8", "8Gi"), newDeviceClass("gpu"),
		newSlice("a", model), newSlice("b", newDevice("y", "m")), newDeviceClaim("c", `device.attributes["gpu.example.com"].exists`))
	v := testDecider().decide(cycle)
	if v.node != nil || !strings.Contains(v.explain(2), "CEL runtime error") || !slices.Equal(v.rules, []string{"DynamicResources"}) {
		t.Errorf("node %v, %s, %v", v.node, v.explain(2), v.rules)
	}
}

func TestTheFirstAlternativeIsPreferred(t *testing.T) {
	claim := newDeviceClaim("c")
	sub := func(name, expression string) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}
	}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{sub("big", isBig), sub("any", "true")}}}
	for range 10 { // the rest of the scores is even, so a node would be chosen at random
		v := testDecider().decide(cycleFor(schedulertest.Pod("p", using("c")), schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "8", "8Gi"),
			newDeviceClass("gpu"), newSlice("a", newDevice("a0", "small")), newSlice("b", newDevice("b0", "big")), claim))
		if v.node == nil || v.node.Name() != "b" {
			t.Fatal(v.node)
		}
	}
}

func TestAClaimThatKeepsThePodAwayIsObsoleteUnlessAnotherPodUsesIt(t *testing.T) {
	for name, users := range map[string][]string{"": {}, "c": {"p"}, "none": {"p", "q"}} {
		claim := allocated(newDeviceClaim("c", ""), "gone", "x")
		for _, u := range users {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: u, UID: types.UID("pod-" + u)})
		}
		cycle := cycleFor(schedulertest.Pod("p", using("c")), schedulertest.Node("a", "8", "8Gi"), newDeviceClass("gpu"), claim)
		if v := testDecider().decide(cycle); v.node != nil {
			t.Fatal(v.node)
		}
		if got := rules.Obsolete(cycle); (got == nil) != (name == "none") {
			t.Errorf("used by %v: %v", users, got)
		}
	}
}

func TestOneDeviceGoesFromPodToPod(t *testing.T) {
	w := start(t, schedulertest.Node("a", "8", "8Gi"), newDeviceClass("gpu"), newSlice("a", newDevice("a0", "small")),
		newDeviceClaim("c", ""), newDeviceClaim("d", ""), schedulertest.Pod("p", using("c")))
	w.eventually("p is bound", func() bool { return len(w.nodes("p")) == 1 })
	claims := w.client.ResourceV1().ResourceClaims("default")
	c, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Finalizers, []string{resourceapi.Finalizer}) || len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].UID != "pod-p" ||
		c.Status.Allocation.Devices.Results[0].Device != "a0" || c.Status.Allocation.AllocationTimestamp == nil {
		t.Fatalf("%+v", c)
	}
	w.add(schedulertest.Pod("q", using("d")))
	w.eventually("q is refused", func() bool { return w.sched.queue.Lengths().Refused == 1 })
	c.Status = resourceapi.ResourceClaimStatus{}
	if _, err := claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("q is bound", func() bool { return len(w.nodes("q")) == 1 })
}

func TestAPodWithExtendedResourcesGetsAClaimThatItsStatusNames(t *testing.T) {
	class := newDeviceClass("gpu", func(c *resourceapi.DeviceClass) { c.Spec.ExtendedResourceName = new("example.com/gpu") })
	w := startAs(t, func(s *Scheduler) {
		s.cfg.Client.(interface {
			PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
		}).PrependReactor("create", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			claim := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceClaim)
			claim.Name, claim.UID = claim.GenerateName+"1", "made"
			return false, nil, nil
		})
	}, schedulertest.Node("a", "8", "8Gi"), newSlice("a", newDevice("a0", "small")), schedulertest.Pod("p", asking("example.com/gpu", "1")))
	w.eventually("p is refused", func() bool { return w.sched.queue.Lengths().Refused == 1 })
	if _, err := w.client.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("p is bound", func() bool { return len(w.nodes("p")) == 1 })
	status := w.get("p").Status.ExtendedResourceClaimStatus
	want := v1.ContainerExtendedResourceRequest{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"}
	if status == nil || status.ResourceClaimName != "p-extended-resources-1" || !slices.Equal(status.RequestMappings, []v1.ContainerExtendedResourceRequest{want}) {
		t.Fatalf("%+v", status)
	}
	w.eventually("the claim counts as shown", func() bool { return !w.sched.listers.Devices.Reserved("made") })
}

func TestAFailedBindingTakesTheReservationBack(t *testing.T) {
	w := startAs(t, func(s *Scheduler) {}, schedulertest.Node("a", "8", "8Gi"), newDeviceClass("gpu"), newSlice("a", newDevice("a0", "small")), newDeviceClaim("c", ""))
	w.mu.Lock()
	w.fail = 1
	w.mu.Unlock()
	w.add(schedulertest.Pod("p", using("c")))
	w.eventually("p is bound in the second attempt", func() bool { return len(w.nodes("p")) == 1 })
	patched := slices.ContainsFunc(w.client.Actions(), func(a clienttesting.Action) bool {
		p, ok := a.(clienttesting.PatchAction)
		return ok && a.Matches("patch", "resourceclaims/status") && strings.Contains(string(p.GetPatch()), `"$patch":"delete"`)
	})
	if !patched {
		t.Error("the reservation was not taken back")
	}
	c, err := w.client.ResourceV1().ResourceClaims("default").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil || len(c.Status.ReservedFor) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}
