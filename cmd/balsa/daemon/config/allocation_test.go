package config

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAllocationNamesEveryWrongFlag(t *testing.T) {
	a := Allocation{CPUPolicy: "dynamic", CPUOptions: map[string]string{"x": "y"}, ReservedCPUs: "0-", TopologyPolicy: "all", TopologyScope: "node"}
	text := errors.Join(a.validate(nil)...).Error()
	for _, part := range []string{"--cpu-manager-policy", `"dynamic"`, `"x"`, "--reserved-cpus", "--topology-manager-policy"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in: %s", part, text)
		}
	}
	a = Allocation{CPUPolicy: "static", TopologyPolicy: "none", TopologyScope: "pod"}
	if faults := a.validate(nil); len(faults) != 1 || !strings.Contains(faults[0].Error(), "--reserved-cpus") {
		t.Errorf("static without reserved CPUs: %v", faults)
	}
	if faults := a.validate(v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}); faults != nil {
		t.Errorf("static with CPU reserved for the system: %v", faults)
	}
	a.ReservedCPUs = "0,2-3"
	if faults := a.validate(nil); faults != nil || a.Node().ReservedCPUs.Size() != 3 {
		t.Errorf("%v %+v", faults, a.Node())
	}
	if a = defaultAllocation(); a.validate(nil) != nil {
		t.Error("the defaults are refused")
	}
}
