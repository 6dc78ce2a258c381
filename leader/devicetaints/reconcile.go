package devicetaints

import (
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// sentence says when the NoExecute taints of devices evict the pods that use them.
type sentence struct {
	evict bool
	at    time.Time // zero: at once
}

// earlier returns the sentence that is carried out first.
func (s sentence) earlier(o sentence) sentence {
	if !s.evict || o.evict && o.at.Before(s.at) {
		return o
	}
	return s
}

// judge looks up the NoExecute taints of every device of an allocation in the tolerations that the allocation has for it.
// deviceOf returns nil for a device that no slice has any more.
func judge(a *resourceapi.AllocationResult, deviceOf func(driver, pool, name string) *resourceapi.Device) (s sentence) {
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		d := deviceOf(r.Driver, r.Pool, r.Device)
		if d == nil {
			continue
		}
		for _, t := range d.Taints {
			if t.Effect == resourceapi.DeviceTaintEffectNoExecute {
				s = s.earlier(judgeTaint(t, r.Tolerations))
			}
		}
	}
	return s
}

// judgeTaint returns the sentence of one taint: the shortest tolerationSeconds counts, tolerated without a limit means never.
func judgeTaint(t resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) sentence {
	s := sentence{evict: true}
	if t.TimeAdded != nil {
		s.at = t.TimeAdded.Time
	}
	var shortest *int64
	for _, o := range tolerations {
		if o.Effect != resourceapi.DeviceTaintEffectNoExecute || !resourceclaim.ToleratesTaint(o, t) {
			continue
		}
		if o.TolerationSeconds == nil {
			return sentence{}
		}
		if seconds := max(0, *o.TolerationSeconds); shortest == nil || seconds < *shortest {
			shortest = &seconds
		}
	}
	if shortest != nil {
		s.at = s.at.Add(time.Duration(*shortest) * time.Second)
	}
	return s
}

// deviceIn returns a device of a pool's slices. Slices of an older generation are out of date.
func deviceIn(slices []*resourceapi.ResourceSlice, name string) *resourceapi.Device {
	var newest int64
	for _, s := range slices {
		newest = max(newest, s.Spec.Pool.Generation)
	}
	for _, s := range slices {
		if s.Spec.Pool.Generation != newest {
			continue
		}
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == name {
				return &s.Spec.Devices[i]
			}
		}
	}
	return nil
}

// repels reports whether a device of the slice has a taint that evicts pods.
func repels(s *resourceapi.ResourceSlice) bool {
	for i := range s.Spec.Devices {
		for _, t := range s.Spec.Devices[i].Taints {
			if t.Effect == resourceapi.DeviceTaintEffectNoExecute {
				return true
			}
		}
	}
	return false
}
