package admission

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/kubernetes/pkg/util/kernel"
)

// safeSysctls are what every pod may set, with the kernel from which on a value stays within the pod; "" is any kernel.
var safeSysctls = map[string]string{
	"kernel.shm_rmid_forced":              "",
	"net.ipv4.ip_local_port_range":        "",
	"net.ipv4.tcp_syncookies":             "",
	"net.ipv4.ping_group_range":           "",
	"net.ipv4.ip_unprivileged_port_start": "",
	"net.ipv4.ip_local_reserved_ports":    kernel.IPLocalReservedPortsNamespacedKernelVersion,
	"net.ipv4.tcp_keepalive_time":         kernel.TCPKeepAliveTimeNamespacedKernelVersion,
	"net.ipv4.tcp_fin_timeout":            kernel.TCPFinTimeoutNamespacedKernelVersion,
	"net.ipv4.tcp_keepalive_intvl":        kernel.TCPKeepAliveIntervalNamespacedKernelVersion,
	"net.ipv4.tcp_keepalive_probes":       kernel.TCPKeepAliveProbesNamespacedKernelVersion,
	"net.ipv4.tcp_rmem":                   kernel.TCPReceiveMemoryNamespacedKernelVersion,
	"net.ipv4.tcp_wmem":                   kernel.TCPTransmitMemoryNamespacedKernelVersion,
}

// Sysctls says which sysctls pods may set: upstream's safe ones and those that the node's administrator allows.
type Sysctls struct {
	exact, prefixes map[string]utilsysctl.Namespace
}

// NewSysctls returns the safe sysctls of a kernel (nil: unknown, so only those that are safe with any) and those that
// match unsafe: names, or prefixes that end in "*". The error names every pattern that is not allowed.
func NewSysctls(running *version.Version, unsafe []string) (*Sysctls, error) {
	s := &Sysctls{exact: map[string]utilsysctl.Namespace{}, prefixes: map[string]utilsysctl.Namespace{}}
	for name, since := range safeSysctls {
		if since == "" || running != nil && running.AtLeast(version.MustParseGeneric(since)) {
			s.exact[name], _, _ = utilsysctl.GetNamespace(name)
		}
	}
	var errs []error
	for _, p := range unsafe {
		errs = append(errs, s.allow(p))
	}
	return s, errors.Join(errs...)
}

func (s *Sysctls) allow(pattern string) error {
	if !policyvalidation.IsValidSysctlPattern(pattern) {
		return fmt.Errorf("sysctl %q: give at most %d characters, a name as net.core.somaxconn or a prefix as kernel.msg*", pattern, validation.SysctlMaxLength)
	}
	ns, name, isPrefix := utilsysctl.GetNamespace(pattern)
	switch {
	case ns == utilsysctl.UnknownNamespace:
		return fmt.Errorf("sysctl %q: not known to be of a namespace; it would change the whole machine", pattern)
	case isPrefix:
		s.prefixes[name] = ns
	default:
		s.exact[name] = ns
	}
	return nil
}

// check returns why a pod may not set a sysctl.
func (s *Sysctls) check(name string, hostNetwork, hostIPC bool) error {
	name = utilsysctl.NormalizeName(name)
	ns, found := s.namespace(name)
	switch {
	case !found:
		return fmt.Errorf("%q not allowlisted", name)
	case ns == utilsysctl.IPCNamespace && hostIPC, ns == utilsysctl.NetNamespace && hostNetwork:
		return fmt.Errorf("%q not allowed with host %s enabled", name, ns)
	}
	return nil
}

func (s *Sysctls) namespace(name string) (utilsysctl.Namespace, bool) {
	if s == nil {
		return "", false
	}
	if ns, ok := s.exact[name]; ok {
		return ns, true
	}
	for prefix, ns := range s.prefixes {
		if strings.HasPrefix(name, prefix) {
			return ns, true
		}
	}
	return "", false
}

// sysctls refuses a pod that sets what it may not.
func sysctls(in Input) *Refusal {
	if in.Pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range in.Pod.Spec.SecurityContext.Sysctls {
		if err := in.Sysctls.check(s.Name, in.Pod.Spec.HostNetwork, in.Pod.Spec.HostIPC); err != nil {
			return &Refusal{"SysctlForbidden", "forbidden sysctl: " + err.Error()}
		}
	}
	return nil
}
