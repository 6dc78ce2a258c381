package scheduler

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
)

// sliceOn is a slice of node "a" with its devices, changed by with.
func sliceOn(with func(*resourceapi.ResourceSliceSpec), devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	s := newSlice("a", devices...)
	with(&s.Spec)
	return s
}

func as(r *resourceapi.ExactDeviceRequest, with func(*resourceapi.ExactDeviceRequest)) *resourceapi.ResourceClaim {
	with(r)
	c := newDeviceClaim("c")
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r0", Exactly: r}}
	return c
}

func exactly(count int64) *resourceapi.ExactDeviceRequest {
	return &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
}

func constrained(c resourceapi.DeviceConstraint) *resourceapi.ResourceClaim {
	claim := newDeviceClaim("c", "", "")
	c.Requests = []string{"r0", "r1"}
	claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{c}
	return claim
}

func counted(name, amount string) resourceapi.Device {
	return resourceapi.Device{Name: name, ConsumesCounters: []resourceapi.DeviceCounterConsumption{
		{CounterSet: "memory", Counters: map[string]resourceapi.Counter{"m": {Value: resource.MustParse(amount)}}}}}
}

// TestWhatSlicesAndClaimsSayDecides has a case for each thing that a slice or a claim may say: which devices of node "a" a pod gets.
func TestWhatSlicesAndClaimsSayDecides(t *testing.T) {
	plain := func(*resourceapi.ResourceSliceSpec) {}
	model := new(resourceapi.FullyQualifiedName(driver + "/model"))
	noSchedule := resourceapi.Device{Name: "x", Taints: []resourceapi.DeviceTaint{{Key: "k", Value: "v", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	memory := func(policy *resourceapi.CapacityRequestPolicy) resourceapi.Device {
		return resourceapi.Device{Name: "x", AllowMultipleAllocations: new(true), Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"m": {Value: resource.MustParse("10"), RequestPolicy: policy}}}
	}
	wants := func(amount string) *resourceapi.ResourceClaim {
		return as(exactly(1), func(r *resourceapi.ExactDeviceRequest) {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"m": resource.MustParse(amount)}}
		})
	}
	step := &resourceapi.CapacityRequestPolicy{Default: new(resource.MustParse("2")),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(resource.MustParse("2")), Step: new(resource.MustParse("2")), Max: new(resource.MustParse("4"))}}
	values := &resourceapi.CapacityRequestPolicy{Default: new(resource.MustParse("5")), ValidValues: []resource.Quantity{resource.MustParse("5"), resource.MustParse("8")}}
	counters := newSlice("a")
	counters.Name = "counters"
	counters.Spec.Pool.ResourceSliceCount = 2
	counters.Spec.SharedCounters = []resourceapi.CounterSet{{Name: "memory", Counters: map[string]resourceapi.Counter{"m": {Value: resource.MustParse("3")}}}}
	two := func(s *resourceapi.ResourceSliceSpec) { s.Pool.ResourceSliceCount = 2 }
	newest := sliceOn(func(s *resourceapi.ResourceSliceSpec) { s.Pool.Generation = 2 }, newDevice("new", "m"))
	newest.Name = "newest"
	none := []string{}
	for name, c := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		slices []runtime.Object
		want   []string
	}{
		"a count":          {as(exactly(2), func(*resourceapi.ExactDeviceRequest) {}), []runtime.Object{newSlice("a", newDevice("x", "m"), newDevice("y", "m"))}, []string{"x", "y"}},
		"too high a count": {as(exactly(3), func(*resourceapi.ExactDeviceRequest) {}), []runtime.Object{newSlice("a", newDevice("x", "m"), newDevice("y", "m"))}, none},
		"all": {as(exactly(0), func(r *resourceapi.ExactDeviceRequest) { r.AllocationMode = resourceapi.DeviceAllocationModeAll }),
			[]runtime.Object{newSlice("a", newDevice("x", "m"), newDevice("y", "m"))}, []string{"x", "y"}},
		"a match":       {constrained(resourceapi.DeviceConstraint{MatchAttribute: model}), []runtime.Object{newSlice("a", newDevice("x", "m"), newDevice("y", "n"), newDevice("z", "m"))}, []string{"x", "z"}},
		"a distinction": {constrained(resourceapi.DeviceConstraint{DistinctAttribute: model}), []runtime.Object{newSlice("a", newDevice("x", "m"), newDevice("y", "m"), newDevice("z", "n"))}, []string{"x", "z"}},
		"a taint":       {newDeviceClaim("c", ""), []runtime.Object{newSlice("a", noSchedule)}, none},
		"a toleration": {as(exactly(1), func(r *resourceapi.ExactDeviceRequest) {
			r.Tolerations = []resourceapi.DeviceToleration{{Key: "k", Value: "v", Operator: resourceapi.DeviceTolerationOpEqual, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}), []runtime.Object{newSlice("a", noSchedule)}, []string{"x"}},
		"on all nodes": {newDeviceClaim("c", ""), []runtime.Object{sliceOn(func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, new(true) }, newDevice("x", "m"))}, []string{"x"}},
		"on selected nodes": {newDeviceClaim("c", ""), []runtime.Object{sliceOn(func(s *resourceapi.ResourceSliceSpec) {
			s.NodeName, s.NodeSelector = nil, &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"b"}}}}}}
		}, newDevice("x", "m"))}, none},
		"each device on its nodes": {newDeviceClaim("c", ""), []runtime.Object{sliceOn(func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.PerDeviceNodeSelection = nil, new(true) },
			resourceapi.Device{Name: "x", NodeName: new("b")}, resourceapi.Device{Name: "y", AllNodes: new(true)})}, []string{"y"}},
		"the newest generation of a pool":      {newDeviceClaim("c", ""), []runtime.Object{newSlice("a", newDevice("old", "m")), newest}, []string{"new"}},
		"an incomplete pool":                   {newDeviceClaim("c", ""), []runtime.Object{sliceOn(two, newDevice("x", "m"))}, none},
		"partitions":                           {as(exactly(2), func(*resourceapi.ExactDeviceRequest) {}), []runtime.Object{counters, sliceOn(two, counted("big", "2"), counted("other", "2"), counted("small", "1"))}, []string{"big", "small"}},
		"too many partitions":                  {as(exactly(2), func(*resourceapi.ExactDeviceRequest) {}), []runtime.Object{counters, sliceOn(two, counted("big", "2"), counted("other", "2"))}, none},
		"capacity of a shared device":          {wants("4"), []runtime.Object{newSlice("a", memory(nil))}, []string{"x"}},
		"more capacity than there is":          {wants("11"), []runtime.Object{newSlice("a", memory(nil))}, none},
		"a capacity that is rounded up":        {wants("3"), []runtime.Object{newSlice("a", memory(step))}, []string{"x"}},
		"a capacity above the device's range":  {wants("5"), []runtime.Object{newSlice("a", memory(step))}, none},
		"a capacity of the device's values":    {wants("6"), []runtime.Object{newSlice("a", memory(values))}, []string{"x"}},
		"a capacity above the device's values": {wants("9"), []runtime.Object{newSlice("a", memory(values))}, none},
		"no devices at all":                    {newDeviceClaim("c", ""), []runtime.Object{sliceOn(plain)}, none},
	} {
		t.Run(name, func(t *testing.T) {
			cycle := cycleFor(schedulertest.Pod("p", using("c")), append(c.slices, schedulertest.Node("a", "8", "8Gi"), newDeviceClass("gpu"), c.claim)...)
			testDecider().decide(cycle)
			got := []string{}
			if plan := rules.PlanDevices(cycle, "a"); plan != nil {
				for _, r := range plan.Claims[0].Allocation.Devices.Results {
					got = append(got, r.Device)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestAllocationsCarryWhatDriversAndOtherClaimsNeed(t *testing.T) {
	opaque := func(s string) *resourceapi.OpaqueDeviceConfiguration {
		return &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(s)}}
	}
	class := newDeviceClass("gpu", func(c *resourceapi.DeviceClass) {
		c.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque(`"class"`)}}}
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: isBig}}}
	})
	claim := as(exactly(1), func(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = new(true) })
	claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{Requests: []string{"r0"}, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque(`"claim"`)}}}
	device := newDevice("x", "big")
	device.BindsToNode, device.BindingConditions, device.BindingFailureConditions = new(true), []string{"ready"}, []string{"broken"}
	// An administrator sees a device that another claim has.
	cycle := cycleFor(schedulertest.Pod("p", using("c")), schedulertest.Node("a", "8", "8Gi"), class, newSlice("a", newDevice("small", "small"), device), claim,
		allocated(newDeviceClaim("other", ""), "a", "x"))
	testDecider().decide(cycle)
	plan := rules.PlanDevices(cycle, "a")
	if plan == nil {
		t.Fatal("no plan")
	}
	a := plan.Claims[0].Allocation
	r := a.Devices.Results[0]
	if r.Device != "x" || r.Driver != driver || r.Pool != "a" || r.Request != "r0" || !*r.AdminAccess || !slices.Equal(r.BindingConditions, []string{"ready"}) ||
		!slices.Equal(r.BindingFailureConditions, []string{"broken"}) || !plan.Waits() || a.NodeSelector == nil {
		t.Errorf("%+v", a)
	}
	if c := a.Devices.Config; len(c) != 2 || c[0].Source != resourceapi.AllocationConfigSourceClass || string(c[0].Opaque.Parameters.Raw) != `"class"` ||
		c[1].Source != resourceapi.AllocationConfigSourceClaim || !slices.Equal(c[1].Requests, []string{"r0"}) {
		t.Errorf("%+v", c)
	}
}

func TestAPodWaitsUntilItsDevicesAreReady(t *testing.T) {
	device := newDevice("x", "m")
	device.BindingConditions, device.BindingFailureConditions = []string{"ready"}, []string{"broken"}
	w := start(t, schedulertest.Node("a", "8", "8Gi"), newDeviceClass("gpu"), newSlice("a", device), newDeviceClaim("c", ""), schedulertest.Pod("p", using("c")))
	w.event("Normal BindingConditionsPending waiting for binding conditions for device on node a")
	claims := w.client.ResourceV1().ResourceClaims("default")
	claim, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil || len(w.nodes("p")) != 0 {
		t.Fatal(err, w.nodes("p"))
	}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: driver, Pool: "a", Device: "x", Conditions: []metav1.Condition{{Type: "ready", Status: metav1.ConditionTrue}}}}
	if _, err := claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("p is bound", func() bool { return len(w.nodes("p")) == 1 })
}
