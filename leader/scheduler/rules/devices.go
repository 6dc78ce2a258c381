package rules

import v1 "k8s.io/api/core/v1"

// reasonDevices is what the user of a pod with resourceClaims reads.
const reasonDevices = "pod has resourceClaims, and devices are not allocated in this cluster"

// Devices refuses pods with spec.resourceClaims: Balsa does not allocate devices, and the pod must not start without them. Only a new pod
// undoes the refusal.
var Devices = Filter{
	Name: "DynamicResources",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		if asksForDevices(c.Pod.Object) {
			return nil, forbid(reasonDevices)
		}
		return nil, nil
	},
}

func asksForDevices(p *v1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }
