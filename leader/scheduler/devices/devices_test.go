package devices

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"pgregory.net/rapid"
)

func held(devices ...string) *resourceapi.AllocationResult {
	a := &resourceapi.AllocationResult{}
	for _, d := range devices {
		a.Devices.Results = append(a.Devices.Results, resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "p", Device: d})
	}
	return a
}

// TestTheIndexAgreesWithANaiveModel changes what claims hold at random and counts anew after each change.
func TestTheIndexAgreesWithANaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, model := newIndex(), map[types.UID]*resourceapi.AllocationResult{}
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			claim := types.UID(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "claim"))
			var now *resourceapi.AllocationResult
			if rapid.Bool().Draw(t, "allocated") {
				now = held(rapid.SliceOfN(rapid.SampledFrom([]string{"1", "2", "3"}), 1, 2).Draw(t, "devices")...)
				if rapid.Bool().Draw(t, "shared") {
					share := types.UID(fmt.Sprint(claim, "-share"))
					now = held("s")
					now.Devices.Results[0].ShareID = &share
					now.Devices.Results[0].ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"m": resource.MustParse("1")}
				}
			}
			x.set(claim, now)
			model[claim] = now
			alone, shared := map[string]bool{}, 0
			for _, a := range model {
				if a == nil {
					continue
				}
				for _, r := range a.Devices.Results {
					if r.ShareID != nil {
						shared++
					} else {
						alone[r.Device] = true
					}
				}
			}
			for _, d := range []string{"1", "2", "3"} {
				if x.state.AllocatedDevices.Has(structured.MakeDeviceID("d", "p", d)) != alone[d] {
					t.Fatalf("device %s: want taken %t", d, alone[d])
				}
			}
			if n := len(x.state.AllocatedSharedDeviceIDs); n != shared {
				t.Fatalf("%d shares, want %d", n, shared)
			}
			if q := x.state.AggregatedCapacity[structured.MakeDeviceID("d", "p", "s")]["m"]; (q == nil) != (shared == 0) || q != nil && q.Value() != int64(shared) {
				t.Fatalf("capacity %v, want %d", q, shared)
			}
		}
	})
}

func TestAReservationCountsUntilAnEventShowsIt(t *testing.T) {
	b := New(Config{})
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "c"}}
	b.Reserve("c", held("1"))
	b.ClaimChanged(nil, claim) // an event from before the write
	if !b.Reserved("c") {
		t.Error("an older event takes the reservation away")
	}
	shown := claim.DeepCopy()
	shown.Status.Allocation = held("1")
	b.ClaimChanged(claim, shown)
	if b.Reserved("c") || b.Release("c") {
		t.Error("the reservation stays after the event")
	}
	b.Reserve("memory", held("2"))
	b.Rename("memory", "api")
	if b.Reserved("memory") || !b.Reserved("api") || !b.Release("api") {
		t.Error("the reservation has not moved")
	}
	changes, _ := b.take()
	x := newIndex()
	for _, c := range changes {
		x.set(c.claim, c.now)
	}
	if len(x.held) != 1 || x.held["c"] == nil {
		t.Errorf("%v", x.held)
	}
}

func TestRequestsOfContainers(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	with := func(name string, n int, policy *v1.ContainerRestartPolicy) v1.Container {
		c := v1.Container{Name: name, RestartPolicy: policy}
		if n > 0 {
			c.Resources.Requests = v1.ResourceList{"cpu": resource.MustParse("1"), "example.com/gpu": *resource.NewQuantity(int64(n), resource.DecimalSI)}
		}
		return c
	}
	for name, c := range map[string]struct {
		inits, containers []v1.Container
		want              string
	}{
		"two containers": {nil, []v1.Container{with("a", 1, nil), with("b", 2, nil), with("c", 0, nil)},
			"container-0-request-1=1 container-1-request-1=2 | a:container-0-request-1 b:container-1-request-1"},
		"an init container uses the devices of a container after it": {[]v1.Container{with("i", 1, nil)}, []v1.Container{with("a", 2, nil)},
			"container-1-request-1=2 | a:container-1-request-1 i:container-1-request-1"},
		"init containers that need more share one request": {[]v1.Container{with("i", 3, nil), with("j", 5, nil)}, []v1.Container{with("a", 2, nil)},
			"container-1-request-1=3 container-2-request-1=2 | a:container-2-request-1 i:container-2-request-1 j:container-2-request-1 i:container-1-request-1 j:container-1-request-1"},
		"a sidecar keeps its own": {[]v1.Container{with("s", 1, &always)}, []v1.Container{with("a", 1, nil)},
			"container-0-request-1=1 container-1-request-1=1 | s:container-0-request-1 a:container-1-request-1"},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{InitContainers: c.inits, Containers: c.containers}}
		requests, mappings := Requests(pod, map[v1.ResourceName]string{"example.com/gpu": "gpu"})
		var got []string
		for _, r := range requests {
			got = append(got, fmt.Sprintf("%s=%d", r.Name, r.Exactly.Count))
		}
		got = append(got, "|")
		for _, m := range mappings {
			got = append(got, m.ContainerName+":"+m.RequestName)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s:\n%s, want\n%s", name, s, c.want)
		}
	}
}
