package cri

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ConditionFaults lists what the conditions of a runtime say against running pods; empty when it is ready.
func ConditionFaults(s *runtimeapi.RuntimeStatus) []string {
	var faults []string
	seen := map[string]bool{}
	for _, c := range s.GetConditions() {
		seen[c.Type] = true
		switch {
		case c.Status:
		case c.Type == runtimeapi.NetworkReady:
			faults = append(faults, fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.Reason, c.Message))
		case c.Type == runtimeapi.RuntimeReady:
			faults = append(faults, fmt.Sprintf("container runtime not ready: RuntimeReady=false reason:%s message:%s", c.Reason, c.Message))
		}
	}
	if !seen[runtimeapi.RuntimeReady] {
		faults = append(faults, "container runtime status check may not have completed yet")
	}
	return faults
}
