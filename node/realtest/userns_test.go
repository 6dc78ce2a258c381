package realtest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUserNamespaces: root of a pod with hostUsers: false is nobody on the host, and its volumes are its own all the same.
func TestUserNamespaces(t *testing.T) {
	m := newMachine(t)
	ctx := context.Background()
	if _, err := m.client.CoreV1().Secrets("default").Create(ctx, &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}, Data: map[string][]byte{"key": []byte("treasure")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	no, mode, fs := false, int32(0o400), int64(2000)
	hostDir := t.TempDir()
	if err := os.WriteFile(hostDir+"/of-root", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	volumes := []v1.Volume{
		{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: &mode}}},
		{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: hostDir}}},
		{Name: "d", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: &mode, Items: []v1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}}}}},
	}
	mounts := []v1.VolumeMount{{Name: "s", MountPath: "/s"}, {Name: "e", MountPath: "/e"}, {Name: "h", MountPath: "/h"}, {Name: "d", MountPath: "/d"}}
	const look = "echo MAP $(cat /proc/self/uid_map); cat /s/key; cat /d/name; cat /proc/self/status; " +
		"echo x > /e/f && echo wrote; cat /h/of-root && echo ofroot; echo y > /h/made; ls -l /s/..data/key /e/f /h/of-root /dev/termination-log; ls -ld /e; echo end; sleep 3600"
	users := func(fsGroup *int64) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.HostUsers, p.Spec.SecurityContext.FSGroup, p.Spec.Volumes = &no, fsGroup, volumes
			p.Spec.Containers = []v1.Container{sh("main", look)}
			p.Spec.Containers[0].VolumeMounts = mounts
		}
	}
	m.pod("one", users(nil))
	m.pod("two", users(&fs))
	one, two := m.awaitReady("one"), m.awaitReady("two")
	logOf := func(p *v1.Pod) string {
		var log string
		for deadline := time.Now().Add(time.Minute); !strings.Contains(log, "end") && time.Now().Before(deadline); {
			log = m.log(p, "main", 0)
			<-time.After(10 * time.Millisecond)
		}
		return log
	}
	owners := map[string][]string{
		"one": {"-r-------- 0 0 8", "-rw------- 0 0 0", "drwxrwxrwx 0 0 "},
		"two": {"-r--r----- 0 2000 8", "-rw------- 0 0 0", "dgrwxrwxrwx 0 2000 "}, // its fsGroup
	}
	first := map[string]uint64{}
	for _, p := range []*v1.Pod{one, two} {
		log := logOf(p)
		for _, want := range append(owners[p.Name], "treasure", "wrote", "ofroot", "Seccomp:\t2", p.Name) {
			if !strings.Contains(log, want) {
				t.Errorf("%s: the log has no %q:\n%s", p.Name, want, log)
			}
		}
		_, line, _ := strings.Cut(log, "MAP ")
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "0" || f[2] != "65536" {
			t.Fatalf("%s: its user IDs are mapped so: %s", p.Name, log)
		}
		from, err := strconv.ParseUint(f[1], 10, 32)
		if err != nil || from < 65536 {
			t.Errorf("%s: root is %s on the host", p.Name, f[1])
		}
		first[p.Name] = from
	}
	if first["one"] == first["two"] {
		t.Errorf("both pods have the IDs from %d", first["one"])
	}
	// What root of the pod writes into a volume is root's on the host: the mount maps it back.
	if st, err := os.Stat(hostDir + "/made"); err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("made by the pod: %+v, %v", st, err)
	}

	// The IDs stay the pod's over a restart of the agent, also for containers that start later.
	m.stop()
	m.startAgent()
	<-m.agent.Connected()
	m.pod("three", users(nil))
	three := m.awaitReady("three")
	if log := logOf(three); strings.Contains(log, fmt.Sprintf("MAP 0 %d ", first["one"])) || strings.Contains(log, fmt.Sprintf("MAP 0 %d ", first["two"])) {
		t.Errorf("IDs are given twice, %v and:\n%s", first, log)
	}
	later, err := m.client.CoreV1().Pods("default").Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	later.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(sh("debug", "echo MAP $(cat /proc/self/uid_map) end; sleep 3600"))}}
	if _, err := m.client.CoreV1().Pods("default").Update(ctx, later, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	m.await("one", "debugged", func(p *v1.Pod) bool { return running(p, "debug") })
	want, log := fmt.Sprintf("MAP 0 %d 65536", first["one"]), ""
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log, want) && time.Now().Before(deadline); {
		log = m.log(later, "debug", 0)
		<-time.After(10 * time.Millisecond)
	}
	if !strings.Contains(log, want) {
		t.Errorf("the ephemeral container has %q, want %q", log, want)
	}
	n, err := m.client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if h := n.Status.RuntimeHandlers; len(h) == 0 || h[0].Features.UserNamespaces == nil || !*h[0].Features.UserNamespaces {
		t.Errorf("the Node's runtime handlers: %+v", h)
	}
	if f := n.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
		t.Errorf("the Node's features: %+v", f)
	}
	for _, name := range []string{"one", "two", "three"} {
		m.deletePod(name)
	}
	for _, p := range []*v1.Pod{one, two, three} {
		m.await(p.Name, "gone", func(p *v1.Pod) bool { return p == nil })
		m.awaitNothing(p.UID)
	}
}
