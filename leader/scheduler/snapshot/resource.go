package snapshot

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// Resource is the amounts that a node offers or a pod requests, as integers, so that a filter costs a few comparisons.
type Resource struct {
	MilliCPU         int64 // thousandths of a core
	Memory           int64 // bytes
	EphemeralStorage int64 // bytes
	Pods             int64 // greatest number of pods; 0 in a pod's request
	// Scalar holds every other resource (extended resources, hugepages, attachable volumes) in its base unit.
	Scalar map[v1.ResourceName]int64
}

// NewResource converts a ResourceList of the API.
func NewResource(list v1.ResourceList) Resource {
	var r Resource
	for name, q := range list {
		switch name {
		case v1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case v1.ResourceMemory:
			r.Memory = q.Value()
		case v1.ResourceEphemeralStorage:
			r.EphemeralStorage = q.Value()
		case v1.ResourcePods:
			r.Pods = q.Value()
		default:
			if r.Scalar == nil {
				r.Scalar = make(map[v1.ResourceName]int64)
			}
			r.Scalar[name] = q.Value()
		}
	}
	return r
}

// add changes r by sign (1 or -1) times o.
func (r *Resource) add(o *Resource, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	for name, v := range o.Scalar {
		if r.Scalar == nil {
			r.Scalar = make(map[v1.ResourceName]int64, len(o.Scalar))
		}
		r.Scalar[name] += sign * v
	}
}

func (r Resource) clone() Resource {
	r.Scalar = maps.Clone(r.Scalar)
	return r
}
