package realtest

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSpecReachesTheContainer: what a spec asks for is what a process sees.
func TestSpecReachesTheContainer(t *testing.T) {
	m := newMachine(t)
	ctx := context.Background()
	if _, err := m.client.CoreV1().Secrets("default").Create(ctx, &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}, Data: map[string][]byte{"key": []byte("treasure")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	yes, no, mode := true, false, int32(0o644)
	user, group, fs := int64(1000), int64(1001), int64(2000)
	m.pod("spec", func(p *v1.Pod) {
		p.Labels = map[string]string{"colour": "red"}
		p.Spec.Hostname, p.Spec.Subdomain = "host", "sub"
		p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &group, FSGroup: &fs,
			Sysctls: []v1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}}}
		p.Spec.ShareProcessNamespace = &yes
		p.Spec.Volumes = []v1.Volume{
			{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: &mode}}},
			{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
			{Name: "d", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: &mode, Items: []v1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}}}}}},
		}
		c := sh("main", "cat /proc/self/status /proc/sys/kernel/shm_rmid_forced /s/key /sub; cat /d/labels; cat /etc/hosts /etc/resolv.conf; hostname; echo ENV=$FROM $IP $(FROM); "+
			"echo x > /e/f && echo wrote; echo y > /ro || echo readonly; sleep 3600")
		c.Args = nil
		c.Env = []v1.EnvVar{
			{Name: "FROM", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Key: "key"}}},
			{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.podIP"}}},
		}
		c.VolumeMounts = []v1.VolumeMount{{Name: "s", MountPath: "/s"}, {Name: "s", MountPath: "/sub", SubPath: "key"}, {Name: "e", MountPath: "/e"}, {Name: "d", MountPath: "/d"}}
		c.SecurityContext = &v1.SecurityContext{ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no,
			Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}}, SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}
		c.Resources = v1.ResourceRequirements{
			Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("200m"), v1.ResourceMemory: resource.MustParse("64Mi")},
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("32Mi")},
		}
		p.Spec.Containers = []v1.Container{c}
	})
	p := m.awaitReady("spec")
	deadline := time.Now().Add(time.Minute)
	log := ""
	for !strings.Contains(log, "readonly") && time.Now().Before(deadline) {
		log = m.log(p, "main", 0)
		<-time.After(10 * time.Millisecond)
	}
	for _, want := range []string{
		"Uid:\t1000\t1000", "Gid:\t1001\t1001", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "2000",
		"treasuretreasure", "colour=\"red\"", p.Status.PodIP + "\thost.sub.default.svc.cluster.local\thost", "nameserver 10.96.0.10",
		"search default.svc.cluster.local svc.cluster.local cluster.local", "ndots:5", "ENV=treasure " + p.Status.PodIP + " treasure",
		"wrote", "readonly",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q", want)
		}
	}
	if strings.Contains(log, "\tPid:\t1\n") {
		t.Error("the process namespace is not shared")
	}
	if t.Failed() {
		t.Log(log)
	}
	cg := func(controller, file string) string {
		return strings.TrimSpace(readFile("/sys/fs/cgroup/" + controller + m.cfg.CgroupParent + "/burstable/pod" + string(p.UID) + "/" + file))
	}
	if got := cg("memory", "memory.limit_in_bytes"); got != "67108864" {
		t.Errorf("pod memory limit %q", got)
	}
	if got := cg("cpu", "cpu.cfs_quota_us"); got != "20000" {
		t.Errorf("pod CPU quota %q", got)
	}
	if got := cg("pids", "pids.max"); got != "700" {
		t.Errorf("pod process limit %q", got)
	}
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	if got := cg("cpu", id+"/cpu.shares"); got != "102" {
		t.Errorf("container CPU shares %q", got)
	}
	p.Spec.Containers[0].Resources.Limits[v1.ResourceMemory] = resource.MustParse("128Mi")
	if _, err := m.client.CoreV1().Pods("default").Update(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline = time.Now().Add(time.Minute)
	for cg("memory", id+"/memory.limit_in_bytes") != "134217728" && time.Now().Before(deadline) {
		<-time.After(10 * time.Millisecond)
	}
	if got := cg("memory", id+"/memory.limit_in_bytes"); got != "134217728" || cg("memory", "memory.limit_in_bytes") != got {
		t.Errorf("resized to %q, pod %q", got, cg("memory", "memory.limit_in_bytes"))
	}
	m.deletePod("spec")
	m.await("spec", "gone", func(p *v1.Pod) bool { return p == nil })
	m.awaitNothing(p.UID)
}
