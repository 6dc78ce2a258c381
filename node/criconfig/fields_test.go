package criconfig

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/node/nodetest"
)

// A field of a pod is set, and what the runtime is told has to hold a text that says so.
type fieldCase struct {
	set  func(p *v1.Pod, c *v1.Container)
	want string
}

// configText returns what the runtime is told of a pod and its container, as JSON.
func configText(t *testing.T, set func(*v1.Pod, *v1.Container)) string {
	t.Helper()
	cfg := &Config{RootDir: t.TempDir(), LogDir: t.TempDir(), ClusterDomain: "cluster.local", ClusterDNS: []string{"10.96.0.10"}}
	pod := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{}
	c := &pod.Spec.Containers[0]
	c.SecurityContext = &v1.SecurityContext{}
	set(pod, c)
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	box, _, err := cfg.Sandbox(pod, SandboxInput{CgroupParent: "/pods/u", Users: users})
	if err != nil {
		t.Fatal(err)
	}
	ct, err := cfg.Container(ContainerInput{
		Pod: pod, Container: c, User: ImageUser{Name: "www"}, MemoryCapacity: 1 << 30, Users: users,
		Env: []*runtimeapi.KeyValue{{Key: "WHO", Value: []byte("me")}}, Devices: []*runtimeapi.Device{{ContainerPath: "/dev/x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := cfg.hostsFile(pod, []string{"10.244.0.7"})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, v := range []any{box, ct, string(hosts)} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func check(t *testing.T, cases map[string]fieldCase) {
	t.Helper()
	plain := configText(t, func(*v1.Pod, *v1.Container) {})
	for name, c := range cases {
		if got := configText(t, c.set); !strings.Contains(got, c.want) || strings.Contains(plain, c.want) {
			t.Errorf("%s: the runtime is not told %s, or is told it of every pod:\n%s", name, c.want, got)
		}
	}
}

func TestFieldsOfAContainerReachTheRuntime(t *testing.T) {
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourceMemory: resource.MustParse("64Mi")}
	profile := ptr.To("profiles/mine.json")
	check(t, map[string]fieldCase{
		"Command":                  {func(_ *v1.Pod, c *v1.Container) { c.Command = []string{"/bin/$(WHO)"} }, `"command":["/bin/me"]`},
		"Args":                     {func(_ *v1.Pod, c *v1.Container) { c.Args = []string{"$(WHO)", "$$(WHO)"} }, `"args":["me","$(WHO)"]`},
		"WorkingDir":               {func(_ *v1.Pod, c *v1.Container) { c.WorkingDir = "/srv" }, `"working_dir":"/srv"`},
		"Stdin":                    {func(_ *v1.Pod, c *v1.Container) { c.Stdin = true }, `"stdin":true`},
		"StdinOnce":                {func(_ *v1.Pod, c *v1.Container) { c.StdinOnce = true }, `"stdin_once":true`},
		"TTY":                      {func(_ *v1.Pod, c *v1.Container) { c.TTY = true }, `"tty":true`},
		"TerminationMessagePath":   {func(_ *v1.Pod, c *v1.Container) { c.TerminationMessagePath = "/dev/last-words" }, `"container_path":"/dev/last-words"`},
		"TerminationMessagePolicy": {func(_ *v1.Pod, c *v1.Container) { c.TerminationMessagePolicy = "FallbackToLogsOnError" }, `FallbackToLogsOnError`},
		"Resources.Limits":         {func(_ *v1.Pod, c *v1.Container) { c.Resources.Limits = list }, `"cpu_quota":150000`},
		"Resources.Requests":       {func(_ *v1.Pod, c *v1.Container) { c.Resources.Requests = list }, `"cpu_shares":1536`},
		"Lifecycle.PreStop": {func(_ *v1.Pod, c *v1.Container) {
			c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 41}}}
		}, `\"seconds\":41`},
		"Privileged": {func(_ *v1.Pod, c *v1.Container) { c.SecurityContext.Privileged = ptr.To(true) }, `"privileged":true`},
		"Capabilities.Add": {func(_ *v1.Pod, c *v1.Container) {
			c.SecurityContext.Capabilities = &v1.Capabilities{Add: []v1.Capability{"SYS_TIME"}}
		}, `"add_capabilities":["SYS_TIME"]`},
		"Capabilities.Drop": {func(_ *v1.Pod, c *v1.Container) {
			c.SecurityContext.Capabilities = &v1.Capabilities{Drop: []v1.Capability{"ALL"}}
		}, `"drop_capabilities":["ALL"]`},
		"RunAsUser":                {func(_ *v1.Pod, c *v1.Container) { c.SecurityContext.RunAsUser = ptr.To[int64](1234) }, `"run_as_user":{"value":1234}`},
		"RunAsGroup":               {func(_ *v1.Pod, c *v1.Container) { c.SecurityContext.RunAsGroup = ptr.To[int64](2345) }, `"run_as_group":{"value":2345}`},
		"ReadOnlyRootFilesystem":   {func(_ *v1.Pod, c *v1.Container) { c.SecurityContext.ReadOnlyRootFilesystem = ptr.To(true) }, `"readonly_rootfs":true`},
		"AllowPrivilegeEscalation": {func(_ *v1.Pod, c *v1.Container) { c.SecurityContext.AllowPrivilegeEscalation = ptr.To(false) }, `"no_new_privs":true`},
		"SELinuxOptions": {func(_ *v1.Pod, c *v1.Container) {
			c.SecurityContext.SELinuxOptions = &v1.SELinuxOptions{User: "u", Role: "r", Type: "t", Level: "s0"}
		}, `"selinux_options":{"user":"u","role":"r","type":"t","level":"s0"}`},
		"SeccompProfile.LocalhostProfile": {func(_ *v1.Pod, c *v1.Container) {
			c.SecurityContext.SeccompProfile = &v1.SeccompProfile{Type: "Localhost", LocalhostProfile: profile}
		}, `seccomp/profiles/mine.json"`},
		"AppArmorProfile.LocalhostProfile": {func(_ *v1.Pod, c *v1.Container) {
			c.SecurityContext.AppArmorProfile = &v1.AppArmorProfile{Type: "Localhost", LocalhostProfile: profile}
		}, `"localhost_ref":"profiles/mine.json"`},
		"Ports": {func(_ *v1.Pod, c *v1.Container) {
			c.Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: "192.0.2.1", Protocol: v1.ProtocolUDP}}
		}, `{"protocol":1,"container_port":80,"host_port":8080,"host_ip":"192.0.2.1"}`},
	})
	unmasked := configText(t, func(_ *v1.Pod, c *v1.Container) { c.SecurityContext.ProcMount = ptr.To(v1.UnmaskedProcMount) })
	if strings.Contains(unmasked, "/proc/kcore") || !strings.Contains(configText(t, func(*v1.Pod, *v1.Container) {}), "/proc/kcore") {
		t.Error("ProcMount: unmasked paths are masked, or the others are not")
	}
}

func TestFieldsOfAPodReachTheRuntime(t *testing.T) {
	check(t, map[string]fieldCase{
		"HostNetwork":      {func(p *v1.Pod, _ *v1.Container) { p.Spec.HostNetwork = true }, `"network":2`},
		"HostPID":          {func(p *v1.Pod, _ *v1.Container) { p.Spec.HostPID = true }, `"pid":2`},
		"HostIPC":          {func(p *v1.Pod, _ *v1.Container) { p.Spec.HostIPC = true }, `"ipc":2`},
		"Hostname":         {func(p *v1.Pod, _ *v1.Container) { p.Spec.Hostname = "web-1" }, `"hostname":"web-1"`},
		"HostnameOverride": {func(p *v1.Pod, _ *v1.Container) { p.Spec.HostnameOverride = ptr.To("other") }, `"hostname":"other"`},
		"HostAliases": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"nine"}}}
		}, `192.0.2.9\tnine`},
		"Overhead": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: resource.MustParse("7Mi")}
		}, `"memory_limit_in_bytes":7340032`},
		"PriorityClassName":  {func(p *v1.Pod, _ *v1.Container) { p.Spec.PriorityClassName = "system-node-critical" }, `"oom_score_adj":-997`},
		"RunAsUser":          {func(p *v1.Pod, _ *v1.Container) { p.Spec.SecurityContext.RunAsUser = ptr.To[int64](1234) }, `"run_as_user":{"value":1234}`},
		"RunAsGroup":         {func(p *v1.Pod, _ *v1.Container) { p.Spec.SecurityContext.RunAsGroup = ptr.To[int64](2345) }, `"run_as_group":{"value":2345}`},
		"FSGroup":            {func(p *v1.Pod, _ *v1.Container) { p.Spec.SecurityContext.FSGroup = ptr.To[int64](77) }, `"supplemental_groups":[77]`},
		"SupplementalGroups": {func(p *v1.Pod, _ *v1.Container) { p.Spec.SecurityContext.SupplementalGroups = []int64{88} }, `"supplemental_groups":[88]`},
		"SupplementalGroupsPolicy": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.SecurityContext.SupplementalGroupsPolicy = ptr.To(v1.SupplementalGroupsPolicyStrict)
		}, `"supplemental_groups_policy":1`},
		"SELinuxOptions": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.SecurityContext.SELinuxOptions = &v1.SELinuxOptions{Level: "s0:c1"}
		}, `"level":"s0:c1"`},
		"AppArmorProfile": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.SecurityContext.AppArmorProfile = &v1.AppArmorProfile{Type: "Unconfined"}
		}, `"apparmor":{"profile_type":1}`},
		"Sysctls": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.SecurityContext.Sysctls = []v1.Sysctl{{Name: "net.ipv4.ip_local_port_range", Value: "1024 65000"}}
		}, `"net.ipv4.ip_local_port_range":"1024 65000"`},
		"Subdomain in the host file": {func(p *v1.Pod, _ *v1.Container) { p.Spec.Subdomain = "db" }, `p.db.ns.svc.cluster.local`},
		"SetHostnameAsFQDN": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "db", ptr.To(true)
		}, `"hostname":"p.db.ns.svc.cluster.local"`},
		"Resources": {func(p *v1.Pod, _ *v1.Container) {
			p.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("9Mi")}}
		}, `"memory_limit_in_bytes":9437184`},
	})
	shared := configText(t, func(p *v1.Pod, _ *v1.Container) { p.Spec.ShareProcessNamespace = ptr.To(true) })
	if strings.Contains(shared, `"pid":1`) {
		t.Error("ShareProcessNamespace: a container has processes of its own")
	}
}

func TestRunAsNonRootRefusesRoot(t *testing.T) {
	pod := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
	root, other := int64(0), int64(7)
	for name, c := range map[string]struct {
		user    ImageUser
		refused bool
	}{"root": {ImageUser{UID: &root}, true}, "a number": {ImageUser{UID: &other}, false}, "a name": {ImageUser{Name: "www"}, true}} {
		if _, err := (&Config{}).containerSecurity(ContainerInput{Pod: pod, Container: &pod.Spec.Containers[0], User: c.user}); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
