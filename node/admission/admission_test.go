package admission

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

func testNode() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{v1.LabelOSStable: "linux", "disk": "ssd"}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("2"),
		}},
	}
}

func portPod(port int32) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Ports: []v1.ContainerPort{{HostPort: port}}}}}}
}

func setSysctls(names ...string) func(*Input) {
	return func(in *Input) {
		in.Pod.Spec.SecurityContext = &v1.PodSecurityContext{}
		for _, n := range names {
			in.Pod.Spec.SecurityContext.Sysctls = append(in.Pod.Spec.SecurityContext.Sysctls, v1.Sysctl{Name: n, Value: "1"})
		}
	}
}

func TestRefusals(t *testing.T) {
	strict := v1.SupplementalGroupsPolicyStrict
	taint := func(effect v1.TaintEffect) func(*Input) {
		return func(in *Input) { in.Node.Spec.Taints = []v1.Taint{{Key: "k", Effect: effect}} }
	}
	appArmor := func(t v1.AppArmorProfileType) func(*Input) {
		return func(in *Input) {
			in.Pod.Spec.InitContainers = []v1.Container{{Name: "i", SecurityContext: &v1.SecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: t}}}}
		}
	}
	short := func(of ...v1.NodeConditionType) func(*Input) { return func(in *Input) { in.Pressure = of } }
	for name, c := range map[string]struct {
		edit   []func(*Input)
		reason string // "" means that the pod may run
		text   string
	}{
		"plain pod":    {},
		"safe sysctl":  {edit: []func(*Input){setSysctls("kernel.shm_rmid_forced")}},
		"with slashes": {edit: []func(*Input){setSysctls("net/ipv4/tcp_syncookies")}},
		"unsafe sysctl": {[]func(*Input){setSysctls("kernel.shm_rmid_forced", "kernel.msgmax")}, "SysctlForbidden",
			`forbidden sysctl: "kernel.msgmax" not allowlisted`},
		"allowed prefix": {edit: []func(*Input){setSysctls("net.core.somaxconn")}},
		"allowed name":   {edit: []func(*Input){setSysctls("kernel.sem")}},
		"of the host's network": {[]func(*Input){setSysctls("net.core.somaxconn"), func(in *Input) { in.Pod.Spec.HostNetwork = true }},
			"SysctlForbidden", `forbidden sysctl: "net.core.somaxconn" not allowed with host Net enabled`},
		"of the host's IPC": {[]func(*Input){setSysctls("kernel.sem"), func(in *Input) { in.Pod.Spec.HostIPC = true }},
			"SysctlForbidden", `forbidden sysctl: "kernel.sem" not allowed with host IPC enabled`},
		"kernel too old": {[]func(*Input){setSysctls("net.ipv4.tcp_rmem")}, "SysctlForbidden", `forbidden sysctl: "net.ipv4.tcp_rmem" not allowlisted`},
		"nothing allowed": {[]func(*Input){setSysctls("kernel.shm_rmid_forced"), func(in *Input) { in.Sysctls = nil }},
			"SysctlForbidden", `forbidden sysctl: "kernel.shm_rmid_forced" not allowlisted`},

		"os linux": {edit: []func(*Input){func(in *Input) { in.Pod.Spec.OS = &v1.PodOS{Name: v1.Linux} }}},
		"os windows": {[]func(*Input){func(in *Input) { in.Pod.Spec.OS = &v1.PodOS{Name: v1.Windows} }},
			"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"},
		"os label": {[]func(*Input){func(in *Input) { in.Pod.Labels = map[string]string{v1.LabelOSStable: "windows"} }},
			"PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},

		"strict groups": {edit: []func(*Input){func(in *Input) {
			in.Pod.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
		}}},
		"strict groups without a runtime that can": {[]func(*Input){func(in *Input) {
			in.Pod.Spec.SecurityContext, in.StrictGroups = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}, false
		}}, "SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"},

		"taint NoSchedule": {edit: []func(*Input){taint(v1.TaintEffectNoSchedule)}},
		"taint NoExecute": {[]func(*Input){taint(v1.TaintEffectNoExecute)}, "TaintToleration",
			"Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		"taint tolerated": {edit: []func(*Input){taint(v1.TaintEffectNoExecute), func(in *Input) {
			in.Pod.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: v1.TolerationOpExists}}
		}}},
		"taint, static pod": {edit: []func(*Input){taint(v1.TaintEffectNoExecute), func(in *Input) { in.Static = true }}},

		"AppArmor unconfined": {edit: []func(*Input){appArmor(v1.AppArmorProfileTypeUnconfined)}},
		"AppArmor missing":    {[]func(*Input){appArmor(v1.AppArmorProfileTypeRuntimeDefault)}, "AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		"AppArmor there":      {edit: []func(*Input){appArmor(v1.AppArmorProfileTypeRuntimeDefault), func(in *Input) { in.AppArmor = true }}},

		"memory pressure, best effort": {[]func(*Input){short(v1.NodeMemoryPressure)}, "Evicted", "The node had condition: [MemoryPressure]. "},
		"memory pressure, burstable": {edit: []func(*Input){short(v1.NodeMemoryPressure), func(in *Input) {
			in.Pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Mi")}
		}}},
		"memory pressure, tolerated": {edit: []func(*Input){short(v1.NodeMemoryPressure), func(in *Input) {
			in.Pod.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists}}
		}}},
		"disk pressure, burstable": {[]func(*Input){short(v1.NodeMemoryPressure, v1.NodeDiskPressure), func(in *Input) {
			in.Pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Mi")}
		}}, "Evicted", "The node had condition: [MemoryPressure DiskPressure]. "},
		"disk pressure, critical": {edit: []func(*Input){short(v1.NodeDiskPressure), func(in *Input) {
			system := int32(2000000000)
			in.Pod.Spec.Priority = &system
		}}},

		"shutting down": {[]func(*Input){func(in *Input) {
			system := int32(2000000000)
			in.ShuttingDown, in.Pod.Spec.Priority = true, &system
		}}, "NodeShutdown", "Pod was rejected as the node is shutting down."},

		"node selector": {[]func(*Input){func(in *Input) { in.Pod.Spec.NodeSelector = map[string]string{"disk": "hdd"} }},
			"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"port taken": {[]func(*Input){func(in *Input) { in.Pod, in.Others = portPod(80), []*v1.Pod{portPod(80)} }},
			"NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		"port free": {edit: []func(*Input){func(in *Input) { in.Pod, in.Others = portPod(80), []*v1.Pod{portPod(81)} }}},
		"too many pods": {[]func(*Input){func(in *Input) { in.Others = []*v1.Pod{{}, {}} }},
			"OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"},
		"no CPU left": {[]func(*Input){func(in *Input) {
			in.Pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2500m")}
		}}, "OutOfcpu", "Node didn't have enough resource: cpu, requested: 2500, used: 0, capacity: 2000"},
	} {
		t.Run(name, func(t *testing.T) {
			allowed, err := NewSysctls(version.MustParseGeneric("4.14.0"), []string{"net.core.*", "kernel.sem"})
			if err != nil {
				t.Fatal(err)
			}
			in := Input{
				Pod:  &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}},
				Node: testNode(), Sysctls: allowed, StrictGroups: true,
			}
			for _, e := range c.edit {
				e(&in)
			}
			var got Refusal
			if r := Check(in); r != nil {
				got = *r
			}
			if want := (Refusal{c.reason, c.text}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestUnsafeSysctlsThatCannotBeAllowed(t *testing.T) {
	for pattern, ok := range map[string]bool{
		"kernel.msg*": true, "kernel.shm*": true, "net.*": true, "net.core.somaxconn": true, "net/core/somaxconn": true, "fs.mqueue.*": true,
		"vm.swappiness": false, "kernel.*": false, "*": false, "net..core": false, "kernel.pid_max": false, "": false,
	} {
		if _, err := NewSysctls(nil, []string{pattern}); (err == nil) != ok {
			t.Errorf("%q: error %v, want it allowed: %t", pattern, err, ok)
		}
	}
}
