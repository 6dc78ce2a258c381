package rules

import "github.com/balsahq/balsa/leader/scheduler/snapshot"

// LeastAllocated prefers nodes with the larger free share of CPU and memory.
var LeastAllocated = Score{
	Name:   "NodeResourcesFit",
	Weight: 1,
	Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		return ScoreFunc(func(n *snapshot.Node) int64 { return leastAllocated(c.Pod, n) })
	},
}

func leastAllocated(p *snapshot.Pod, n *snapshot.Node) int64 {
	var sum, weights int64
	free := func(have, used int64) {
		if have == 0 {
			return
		}
		weights++
		if used <= have {
			sum += (have - used) * MaxScore / have
		}
	}
	free(n.Allocatable.MilliCPU, n.ScoredMilliCPU+p.ScoredMilliCPU)
	free(n.Allocatable.Memory, n.ScoredMemory+p.ScoredMemory)
	if weights == 0 {
		return 0
	}
	return sum / weights
}

// BalancedAllocation prefers nodes whose shares of CPU and memory in use the pod brings closer together.
var BalancedAllocation = Score{
	Name:   "NodeResourcesBalancedAllocation",
	Weight: 1,
	Prepare: func(c *Cycle, _ []*snapshot.Node) Scorer {
		if c.Pod.Request.MilliCPU == 0 && c.Pod.Request.Memory == 0 {
			return nil
		}
		return ScoreFunc(func(n *snapshot.Node) int64 { return balancedAllocation(c.Pod, n) })
	},
}

func balancedAllocation(p *snapshot.Pod, n *snapshot.Node) int64 {
	with := balance(n, n.Requested.MilliCPU+p.Request.MilliCPU, n.Requested.Memory+p.Request.Memory)
	without := balance(n, n.Requested.MilliCPU, n.Requested.Memory)
	return MaxScore/2 + (MaxScore/2+with-without)/2
}

// balance is MaxScore less the standard deviation of the two shares, which for two values is half their distance.
func balance(n *snapshot.Node, cpu, memory int64) int64 {
	if n.Allocatable.MilliCPU == 0 || n.Allocatable.Memory == 0 {
		return MaxScore
	}
	a := min(float64(cpu)/float64(n.Allocatable.MilliCPU), 1)
	b := min(float64(memory)/float64(n.Allocatable.Memory), 1)
	d := (a - b) / 2
	if d < 0 {
		d = -d
	}
	return int64((1 - d) * float64(MaxScore))
}
