package config

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node"
	"github.com/balsahq/balsa/node/cpumanager"
	"github.com/balsahq/balsa/node/topology"
)

// Allocation configures which containers get CPUs of their own, and how near to each other CPUs and devices of a container
// are. Names and defaults are the kubelet's.
type Allocation struct {
	CPUPolicy      string
	CPUOptions     map[string]string
	ReservedCPUs   string // a list such as 0,2-3
	TopologyPolicy string
	TopologyScope  string
}

func defaultAllocation() Allocation {
	return Allocation{CPUPolicy: string(cpumanager.None), TopologyPolicy: string(topology.None), TopologyScope: string(topology.Container)}
}

// validate reports what is wrong, given what --system-reserved and --kube-reserved keep from pods.
func (a *Allocation) validate(reserved v1.ResourceList) []error {
	parsed, faults := a.parse()
	if parsed.CPUs == cpumanager.Static && a.ReservedCPUs == "" && reserved.Cpu().IsZero() {
		faults = append(faults, fmt.Errorf("--cpu-manager-policy %s: give --reserved-cpus too, or CPU in --system-reserved or --kube-reserved, for the system and the containers that share CPUs", a.CPUPolicy))
	}
	return faults
}

// Node returns the settings as the node agent takes them. Validate has reported what is wrong in them.
func (a *Allocation) Node() node.Allocation {
	parsed, _ := a.parse()
	return parsed
}

func (a *Allocation) parse() (out node.Allocation, faults []error) {
	var err error
	if out.CPUs, out.CPUOptions, err = cpumanager.ParsePolicy(a.CPUPolicy, a.CPUOptions); err != nil {
		faults = append(faults, fmt.Errorf("--cpu-manager-policy, --cpu-manager-policy-options: %w", err))
	}
	if out.ReservedCPUs, err = cpuset.Parse(a.ReservedCPUs); err != nil {
		faults = append(faults, fmt.Errorf("--reserved-cpus %q: give CPUs as 0,2-3: %w", a.ReservedCPUs, err))
	}
	out.Topology, out.Scope = topology.Policy(a.TopologyPolicy), topology.Scope(a.TopologyScope)
	if err := topology.Validate(out.Topology, out.Scope); err != nil {
		faults = append(faults, fmt.Errorf("--topology-manager-policy, --topology-manager-scope: %w", err))
	}
	return out, faults
}
