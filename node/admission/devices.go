package admission

// devices refuses a pod with resourceClaims, which only a pod that names its node itself can bring here: no device is
// prepared, and the pod would run without.
func devices(in Input) *Refusal {
	if len(in.Pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	return &Refusal{"DynamicResources", "it has resourceClaims, and devices are not allocated on this node"}
}
