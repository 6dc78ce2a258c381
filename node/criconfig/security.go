package criconfig

import (
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/podloop"
)

// maskedPaths are hidden from a container with the default procMount, and readonlyPaths cannot be written by it; the lists are
// upstream's.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// ImageUser is the user that an image asks for, by number or by name.
type ImageUser struct {
	UID  *int64
	Name string
}

// effectiveSecurityContext returns a container's security context with the fields that it inherits from the pod.
func effectiveSecurityContext(pod *v1.Pod, c *v1.Container) v1.SecurityContext {
	var sc v1.SecurityContext
	if c.SecurityContext != nil {
		sc = *c.SecurityContext.DeepCopy()
	}
	p := pod.Spec.SecurityContext
	if p == nil {
		return sc
	}
	if sc.SELinuxOptions == nil {
		sc.SELinuxOptions = p.SELinuxOptions
	}
	if sc.RunAsUser == nil {
		sc.RunAsUser = p.RunAsUser
	}
	if sc.RunAsGroup == nil {
		sc.RunAsGroup = p.RunAsGroup
	}
	if sc.RunAsNonRoot == nil {
		sc.RunAsNonRoot = p.RunAsNonRoot
	}
	if sc.SeccompProfile == nil {
		sc.SeccompProfile = p.SeccompProfile
	}
	if sc.AppArmorProfile == nil {
		sc.AppArmorProfile = p.AppArmorProfile
	}
	return sc
}

// containerSecurity translates the security context of a container.
func (c *Config) containerSecurity(in ContainerInput) (*runtimeapi.LinuxContainerSecurityContext, error) {
	pod, ct, user := in.Pod, in.Container, in.User
	sc := effectiveSecurityContext(pod, ct)
	if err := checkNonRoot(pod, ct, sc, user); err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces(pod, in.Users),
		SelinuxOptions:   selinux(sc.SELinuxOptions),
		RunAsUser:        int64Value(sc.RunAsUser),
		RunAsGroup:       int64Value(sc.RunAsGroup),
		Privileged:       isTrue(sc.Privileged),
		ReadonlyRootfs:   isTrue(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:       sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
	}
	if out.RunAsUser == nil {
		out.RunAsUser, out.RunAsUsername = int64Value(user.UID), user.Name
	}
	if caps := sc.Capabilities; caps != nil {
		out.Capabilities = &runtimeapi.Capability{AddCapabilities: capNames(caps.Add), DropCapabilities: capNames(caps.Drop)}
	}
	if sc.ProcMount == nil || *sc.ProcMount != v1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	if p := pod.Spec.SecurityContext; p != nil {
		var err error
		out.SupplementalGroups = supplementalGroups(p)
		if out.SupplementalGroupsPolicy, err = groupsPolicy(p); err != nil {
			return nil, err
		}
	}
	var err error
	if out.Seccomp, err = c.seccomp(sc.SeccompProfile); err != nil {
		return nil, err
	}
	out.Apparmor, err = apparmor(sc.AppArmorProfile)
	return out, err
}

func isTrue(b *bool) bool { return b != nil && *b }

func capNames(caps []v1.Capability) []string {
	out := make([]string, 0, len(caps))
	for _, c := range caps {
		out = append(out, string(c))
	}
	return out
}

// checkNonRoot returns an error for a container that must not run as root and would, or whose user cannot be verified.
func checkNonRoot(pod *v1.Pod, ct *v1.Container, sc v1.SecurityContext, user ImageUser) error {
	if !isTrue(sc.RunAsNonRoot) {
		return nil
	}
	what := fmt.Sprintf("(pod: %q, container: %s)", podloop.PodName(pod), ct.Name)
	switch {
	case sc.RunAsUser != nil:
		if *sc.RunAsUser == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", what)
		}
	case user.UID != nil && *user.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", what)
	case user.UID == nil && user.Name != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", user.Name, what)
	}
	return nil
}

func (c *Config) seccomp(p *v1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	if p == nil && c.SeccompDefault {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	}
	if p == nil {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	}
	switch p.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, fmt.Errorf("localhostProfile must be set if seccompProfile type is Localhost")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(c.RootDir, "seccomp", filepath.Clean("/"+*p.LocalhostProfile))}, nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
}

func apparmor(p *v1.AppArmorProfile) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil {
			return nil, fmt.Errorf("missing localhost apparmor profile name")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}, nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
}
