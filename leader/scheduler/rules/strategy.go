package rules

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// WeightedResource is a resource that a scoring strategy counts.
type WeightedResource struct {
	Name   v1.ResourceName
	Weight int64
}

// Strategy scores a node by the share of one resource that is in use once the pod is there: used of have, with used at
// most have. The result is in 0…MaxScore.
type Strategy func(used, have int64) int64

// Least prefers nodes with the larger free share.
func Least(used, have int64) int64 { return (have - used) * MaxScore / have }

// Most prefers nodes with the larger share in use, so that pods fill few nodes.
func Most(used, have int64) int64 { return used * MaxScore / have }

// Point is a point of a shape: the score, 0 to 10, at a utilization in percent.
type Point struct{ Utilization, Score int64 }

// maxPoint is the best score of a Point.
const maxPoint = 10

// Ratio returns the strategy whose score follows the points, which are in order of utilization, with straight lines
// between them.
func Ratio(points []Point) Strategy {
	points = slices.Clone(points)
	return func(used, have int64) int64 {
		at := used * 100 / have
		for i, p := range points {
			if at > p.Utilization {
				continue
			}
			if i == 0 {
				return p.Score * MaxScore / maxPoint
			}
			before := points[i-1]
			score, step := before.Score*MaxScore/maxPoint, (p.Score-before.Score)*MaxScore/maxPoint
			return score + step*(at-before.Utilization)/(p.Utilization-before.Utilization)
		}
		return points[len(points)-1].Score * MaxScore / maxPoint
	}
}

// Allocated is the score of NodeResourcesFit with a strategy: the mean over the resources by their weights. A resource
// that the node does not have counts for nothing; nor does one beside CPU and memory that the pod does not request. A node
// without room scores 0.
func Allocated(strategy Strategy, resources []WeightedResource) Score {
	resources = slices.Clone(resources)
	score := func(p *snapshot.Pod, n *snapshot.Node) int64 {
		var sum, weights int64
		for _, r := range resources {
			used, have := usage(p, n, r.Name)
			if have == 0 {
				continue
			}
			weights += r.Weight
			if used <= have {
				sum += strategy(used, have) * r.Weight
			}
		}
		if weights == 0 {
			return 0
		}
		return sum / weights
	}
	return Score{Name: LeastAllocated.Name, Weight: LeastAllocated.Weight, Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		return ScoreFunc(func(n *snapshot.Node) int64 { return score(c.Pod, n) })
	}}
}

// usage returns how much of a resource is in use on the node with the pod, and how much there is; 0 of 0 when the resource
// does not count.
func usage(p *snapshot.Pod, n *snapshot.Node, name v1.ResourceName) (used, have int64) {
	switch name {
	case v1.ResourceCPU:
		return n.ScoredMilliCPU + p.ScoredMilliCPU, n.Allocatable.MilliCPU
	case v1.ResourceMemory:
		return n.ScoredMemory + p.ScoredMemory, n.Allocatable.Memory
	case v1.ResourceEphemeralStorage:
		if p.Request.EphemeralStorage == 0 {
			return 0, 0
		}
		return n.Requested.EphemeralStorage + p.Request.EphemeralStorage, n.Allocatable.EphemeralStorage
	}
	if p.Request.Scalar[name] == 0 {
		return 0, 0
	}
	return n.Requested.Scalar[name] + p.Request.Scalar[name], n.Allocatable.Scalar[name]
}
