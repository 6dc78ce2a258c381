package rules

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/balsahq/balsa/leader/scheduler/devices"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// BindingTimeout is how long a device may take until it is ready for its node (KEP-5007), as upstream.
const BindingTimeout = 10 * time.Minute

// DevicePlan is what the claims of a pod need before it can start on its node.
type DevicePlan struct {
	Claims   []ClaimPlan
	Extended *ClaimPlan // a claim to be made for extended resources; nil when there is none
	Mappings []v1.ContainerExtendedResourceRequest

	pod *v1.Pod
}

// ClaimPlan is a claim of a pod. Allocation is nil when it has its devices.
type ClaimPlan struct {
	Claim      *resourceapi.ResourceClaim
	Allocation *resourceapi.AllocationResult
}

// PlanDevices returns the plan for a node that Devices has admitted in this cycle; nil when the pod has no claims.
func PlanDevices(c *Cycle, node string) *DevicePlan {
	if c.devices == nil {
		return nil
	}
	return c.devices.found[node]
}

// All returns the plans of all claims, with the one to be made.
func (p *DevicePlan) All() []ClaimPlan {
	if p.Extended == nil {
		return p.Claims
	}
	return append(p.Claims[:len(p.Claims):len(p.Claims)], *p.Extended)
}

// Waits reports whether a device must get ready before the pod can be bound.
func (p *DevicePlan) Waits() bool {
	for _, claim := range p.All() {
		if conditional(claim.Claim.Status.Allocation) || conditional(claim.Allocation) {
			return true
		}
	}
	return false
}

func conditional(a *resourceapi.AllocationResult) bool {
	if a == nil {
		return false
	}
	for i := range a.Devices.Results {
		if len(a.Devices.Results[i].BindingConditions) > 0 {
			return true
		}
	}
	return false
}

// addExtended adds the claim for those extended resources that the node has none of, and that a class stands for.
func (p *DevicePlan) addExtended(d *deviceCheck, n *snapshot.Node) {
	wanted := map[v1.ResourceName]string{}
	for name, class := range d.backed {
		if n.Allocatable.Scalar[name] == 0 {
			wanted[name] = class
		}
	}
	if len(wanted) == 0 {
		return
	}
	claim := d.extended.DeepCopy()
	claim.Spec.Devices.Requests, p.Mappings = devices.Requests(p.pod, wanted)
	p.Extended = &ClaimPlan{Claim: claim}
}

// DevicesReady reports whether all devices of the claim are ready for their node. Its error says that one never will be.
func DevicesReady(claim *resourceapi.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		status := statusOf(claim, r)
		if status == nil {
			return false, nil
		}
		for _, failure := range r.BindingFailureConditions {
			if c := meta.FindStatusCondition(status.Conditions, failure); c != nil && c.Status == "True" {
				return false, fmt.Errorf("device binding failed: claim=%s, reason=%s, message=%q", claim.Name, c.Reason, c.Message)
			}
		}
		for _, wanted := range r.BindingConditions {
			if !meta.IsStatusConditionTrue(status.Conditions, wanted) {
				return false, nil
			}
		}
	}
	return true, nil
}

func statusOf(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	for i := range claim.Status.Devices {
		if d := &claim.Status.Devices[i]; d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device {
			return d
		}
	}
	return nil
}

// LateDevices reports whether the claim's devices have had BindingTimeout to get ready.
func LateDevices(claim *resourceapi.ResourceClaim, now time.Time) bool {
	a := claim.Status.Allocation
	return conditional(a) && a.AllocationTimestamp != nil && a.AllocationTimestamp.Add(BindingTimeout).Before(now)
}

// failedBinding reports whether other devices must be found for a claim, because its own did not get ready.
func failedBinding(claim *resourceapi.ResourceClaim, now time.Time) bool {
	if !conditional(claim.Status.Allocation) {
		return false
	}
	ready, err := DevicesReady(claim)
	return err != nil || !ready && LateDevices(claim, now)
}

// PreferredDevices prefers nodes on which requests with alternatives get the earlier ones.
var PreferredDevices = Score{
	Name:   "DynamicResources",
	Weight: 2,
	Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		if c.devices == nil || !c.devices.hasAlternatives() {
			return nil
		}
		return relative{raw: func(n *snapshot.Node) int64 { return c.devices.found[n.Name()].score() }}
	},
}

func (d *deviceCheck) hasAlternatives() bool {
	for _, claim := range d.claims {
		for i := range claim.Spec.Devices.Requests {
			if len(claim.Spec.Devices.Requests[i].FirstAvailable) > 0 {
				return true
			}
		}
	}
	return false
}

// score adds up, over the requests with alternatives, how early the chosen one stands.
func (p *DevicePlan) score() (sum int64) {
	if p == nil {
		return 0
	}
	for _, claim := range p.Claims {
		a := claim.Allocation
		if a == nil {
			a = claim.Claim.Status.Allocation
		}
		for i := range claim.Claim.Spec.Devices.Requests {
			sum += scoreRequest(&claim.Claim.Spec.Devices.Requests[i], a)
		}
	}
	return sum
}

func scoreRequest(r *resourceapi.DeviceRequest, a *resourceapi.AllocationResult) (sum int64) {
	for i := range r.FirstAvailable {
		ref := resourceclaim.CreateSubRequestRef(r.Name, r.FirstAvailable[i].Name)
		for j := range a.Devices.Results {
			if a.Devices.Results[j].Request == ref {
				sum += int64(resourceapi.FirstAvailableDeviceRequestMaxSize - i)
				break
			}
		}
	}
	return sum
}
