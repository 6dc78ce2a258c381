package realtest

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func running(p *v1.Pod, name string) bool {
	if p == nil {
		return false
	}
	for _, c := range append(append(append([]v1.ContainerStatus{}, p.Status.ContainerStatuses...), p.Status.InitContainerStatuses...), p.Status.EphemeralContainerStatuses...) {
		if c.Name == name {
			return c.State.Running != nil
		}
	}
	return false
}

func phase(want v1.PodPhase) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return p != nil && p.Status.Phase == want }
}

// TestLife is one machine with many pods, each of which shows one thing.
func TestLife(t *testing.T) {
	m := newMachine(t)
	always := v1.ContainerRestartPolicyAlways
	sidecar := sh("side", "echo side; sleep 3600")
	sidecar.RestartPolicy = &always
	hooked := sh("main", "sleep 3600")
	hooked.Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/bin/hello", "sh", "-c", "echo post > /data/post"}}},
		PreStop:   &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/bin/hello", "sh", "-c", "echo pre > /data/pre"}}},
	}
	hooked.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	dir := t.TempDir()

	m.pod("init", func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.InitContainers = []v1.Container{sh("one", "echo one"), sidecar, sh("two", "echo two")}
		p.Spec.Containers = []v1.Container{sh("main", "echo done > /dev/termination-log; exit 0")}
	})
	m.pod("fails", func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.Containers = []v1.Container{sh("main", "echo last words; exit 3")}
		p.Spec.Containers[0].TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	})
	m.pod("crash", func(p *v1.Pod) { p.Spec.Containers = []v1.Container{sh("main", "exit 1")} })
	m.pod("noimage", func(p *v1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "example.invalid/none:1", v1.PullIfNotPresent
	})
	m.pod("never", func(p *v1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "example.invalid/none:1", v1.PullNever
	})
	m.pod("nocommand", func(p *v1.Pod) { p.Spec.Containers[0].Command = []string{"/no/such"} })
	m.pod("hooks", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}}}}
		p.Spec.Containers = []v1.Container{hooked}
	})
	m.pod("probed", func(p *v1.Pod) {
		c := v1.Container{Name: "main", Image: "docker.io/balsahq/hello:1", ImagePullPolicy: v1.PullIfNotPresent,
			Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: v1.ProtocolTCP}}}
		c.ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}}, PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1, TimeoutSeconds: 1}
		p.Spec.Containers = []v1.Container{c}
	})
	m.pod("unlive", func(p *v1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/bin/hello", "sh", "-c", "exit 1"}}}, PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1, TimeoutSeconds: 1}
	})
	m.pod("host", func(p *v1.Pod) {
		p.Spec.HostNetwork = true
		p.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"alias"}}}
		p.Spec.Containers = []v1.Container{sh("main", "cat /etc/hosts; sleep 3600")}
	})
	m.pod("deadline", func(p *v1.Pod) { s := int64(2); p.Spec.ActiveDeadlineSeconds = &s })
	m.pod("nonroot", func(p *v1.Pod) {
		y := true
		p.Spec.SecurityContext.RunAsNonRoot = &y
		z := int64(0)
		p.Spec.SecurityContext.RunAsUser = &z
	})

	m.await("init", "succeeded", phase(v1.PodSucceeded))
	p := m.await("fails", "failed", phase(v1.PodFailed))
	if got := p.Status.ContainerStatuses[0].State.Terminated; got == nil || got.ExitCode != 3 || !strings.Contains(got.Message, "last words") {
		t.Errorf("fails: %+v", p.Status.ContainerStatuses[0])
	}
	reason := func(want string) func(p *v1.Pod) bool {
		return func(p *v1.Pod) bool {
			if p == nil || len(p.Status.ContainerStatuses) == 0 {
				return false
			}
			w := p.Status.ContainerStatuses[0].State.Waiting
			return w != nil && w.Reason == want
		}
	}
	p = m.await("crash", "in back-off", reason("CrashLoopBackOff"))
	if c := p.Status.ContainerStatuses[0]; c.RestartCount < 1 || c.LastTerminationState.Terminated == nil || p.Status.Phase != v1.PodRunning {
		t.Errorf("crash: %s %+v", p.Status.Phase, c)
	}
	m.await("noimage", "ErrImagePull", reason("ErrImagePull"))
	m.await("noimage", "ImagePullBackOff", reason("ImagePullBackOff"))
	m.await("never", "ErrImageNeverPull", reason("ErrImageNeverPull"))
	m.await("nocommand", "in back-off", reason("CrashLoopBackOff"))
	m.await("nonroot", "refused", reason("CreateContainerConfigError"))
	m.awaitReady("probed")
	p = m.awaitReady("host")
	if p.Status.PodIP != "127.0.0.1" || !strings.Contains(m.log(p, "main", 0), "alias") {
		t.Errorf("host: %s %q", p.Status.PodIP, m.log(p, "main", 0))
	}
	m.await("unlive", "restarted", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount >= 1
	})
	p = m.await("deadline", "failed", phase(v1.PodFailed))
	if p.Status.Reason != "DeadlineExceeded" {
		t.Errorf("deadline: %+v", p.Status)
	}
	m.awaitReady("hooks")
	m.deletePod("hooks")
	m.await("hooks", "gone", func(p *v1.Pod) bool { return p == nil })
	for _, f := range []string{"post", "pre"} {
		if b := readFile(dir + "/" + f); b == "" {
			t.Errorf("hook %s did not run", f)
		}
	}

	// An ephemeral container.
	p = m.awaitReady("probed")
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(sh("debug", "sleep 3600")), TargetContainerName: "main"}}
	if _, err := m.client.CoreV1().Pods("default").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.await("probed", "debugged", func(p *v1.Pod) bool { return running(p, "debug") })

	// All of them go.
	for _, n := range []string{"init", "fails", "crash", "noimage", "never", "nocommand", "probed", "unlive", "host", "deadline", "nonroot"} {
		m.deletePod(n)
	}
	for _, n := range []string{"init", "fails", "crash", "noimage", "never", "nocommand", "probed", "unlive", "host", "deadline", "nonroot"} {
		m.await(n, "gone", func(p *v1.Pod) bool { return p == nil })
	}
}

// TestAdoption: containers run on while the agent is away, and are its own again.
func TestAdoption(t *testing.T) {
	m := newMachine(t)
	m.pod("stays", nil)
	orphan := m.pod("orphan", nil)
	before := m.awaitReady("stays").Status
	m.awaitReady("orphan")
	m.stop()
	if err := m.client.CoreV1().Pods("default").Delete(context.Background(), "orphan", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.startAgent()
	<-m.agent.Connected()
	m.pod("later", nil)
	m.awaitReady("later")
	after := m.awaitReady("stays").Status
	if before.ContainerStatuses[0].ContainerID != after.ContainerStatuses[0].ContainerID || after.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("restarted: %+v", after.ContainerStatuses)
	}
	m.awaitNothing(orphan.UID)
	m.deletePod("stays")
	m.await("stays", "gone", func(p *v1.Pod) bool { return p == nil })
}
