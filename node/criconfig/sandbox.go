package criconfig

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/containerlogs"
)

// SandboxInput is what a sandbox's configuration depends on besides the pod.
type SandboxInput struct {
	Attempt      uint32
	CgroupParent string
	Users        *runtimeapi.UserNamespace
}

// Sandbox translates a pod's spec for the runtime; the warnings are for the pod's user.
func (c *Config) Sandbox(pod *v1.Pod, in SandboxInput) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	dns, warnings, err := c.dnsConfig(pod)
	if err != nil {
		return nil, nil, err
	}
	sc := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: in.Attempt,
		},
		Labels:       podLabels(pod),
		Annotations:  maps.Clone(pod.Annotations),
		DnsConfig:    dns,
		LogDirectory: containerlogs.PodDir(c.LogDir, pod),
		PortMappings: portMappings(pod),
	}
	if !pod.Spec.HostNetwork {
		if sc.Hostname, err = c.kernelHostname(pod); err != nil {
			return nil, nil, err
		}
	}
	security, err := c.sandboxSecurity(pod, in.Users)
	if err != nil {
		return nil, nil, err
	}
	sc.Linux = &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent: in.CgroupParent, SecurityContext: security, Sysctls: map[string]string{},
		Overhead: &runtimeapi.LinuxContainerResources{}, Resources: podResources(pod),
	}
	if pod.Spec.SecurityContext != nil {
		for _, s := range pod.Spec.SecurityContext.Sysctls {
			sc.Linux.Sysctls[s.Name] = s.Value
		}
	}
	if len(pod.Spec.Overhead) > 0 {
		sc.Linux.Overhead = linuxResources(pod.Spec.Overhead.Cpu(), pod.Spec.Overhead.Cpu(), pod.Spec.Overhead.Memory())
	}
	return sc, warnings, nil
}

func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			m := &runtimeapi.PortMapping{HostIp: p.HostIP, HostPort: p.HostPort, ContainerPort: p.ContainerPort}
			switch p.Protocol {
			case v1.ProtocolUDP:
				m.Protocol = runtimeapi.Protocol_UDP
			case v1.ProtocolSCTP:
				m.Protocol = runtimeapi.Protocol_SCTP
			}
			out = append(out, m)
		}
	}
	for i := range pod.Spec.InitContainers {
		if rp := pod.Spec.InitContainers[i].RestartPolicy; rp != nil && *rp == v1.ContainerRestartPolicyAlways {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

// namespaces returns which kernel namespaces the pod's containers share with the host, with each other, or not at all.
func namespaces(pod *v1.Pod, users *runtimeapi.UserNamespace) *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: users}
	if pod.Spec.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		n.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	return n
}

func (c *Config) sandboxSecurity(pod *v1.Pod, users *runtimeapi.UserNamespace) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	s := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, users),
		Privileged:       anyPrivileged(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if c.SandboxConfinesItself {
		s.Seccomp.ProfileType = runtimeapi.SecurityProfile_Unconfined
	}
	psc := pod.Spec.SecurityContext
	if psc == nil {
		return s, nil
	}
	s.RunAsUser, s.RunAsGroup = int64Value(psc.RunAsUser), int64Value(psc.RunAsGroup)
	s.SelinuxOptions = selinux(psc.SELinuxOptions)
	var err error
	s.SupplementalGroups = supplementalGroups(psc)
	s.SupplementalGroupsPolicy, err = groupsPolicy(psc)
	return s, err
}

func anyPrivileged(pod *v1.Pod) bool {
	for _, cs := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range cs {
			if sc := cs[i].SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
				return true
			}
		}
	}
	return false
}

func int64Value(p *int64) *runtimeapi.Int64Value {
	if p == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *p}
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func supplementalGroups(psc *v1.PodSecurityContext) []int64 {
	var g []int64
	if psc.FSGroup != nil {
		g = append(g, *psc.FSGroup)
	}
	return append(g, psc.SupplementalGroups...)
}

func groupsPolicy(psc *v1.PodSecurityContext) (runtimeapi.SupplementalGroupsPolicy, error) {
	if psc.SupplementalGroupsPolicy == nil {
		return runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	p, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*psc.SupplementalGroupsPolicy)]
	if !ok {
		return 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *psc.SupplementalGroupsPolicy)
	}
	return runtimeapi.SupplementalGroupsPolicy(p), nil
}
