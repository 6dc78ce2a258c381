package rules

import (
	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var refusedPorts = refuse("node(s) didn't have free ports for the requested pod ports")

// HostPorts refuses nodes on which a host port of the pod is taken.
var HostPorts = Filter{
	Name: "NodePorts",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		ports := c.Pod.Ports
		if len(ports) == 0 {
			return nil, nil
		}
		return CheckFunc(func(n *snapshot.Node) *Refusal {
			for _, p := range ports {
				if !n.PortFree(p) {
					return refusedPorts
				}
			}
			return nil
		}), nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Node, Action: queue.Add},
		{Kind: queue.Pod, Action: queue.Delete, Helps: func(_ *v1.Pod, e queue.Event) bool {
			return podOf(e.Old) == nil || hasHostPort(podOf(e.Old))
		}},
	},
}

func hasHostPort(p *v1.Pod) bool {
	for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			for _, port := range list[i].Ports {
				if port.HostPort > 0 {
					return true
				}
			}
		}
	}
	return false
}
