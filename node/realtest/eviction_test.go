package realtest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/node"
	"github.com/balsahq/balsa/node/eviction"
)

// TestAPodThatFillsTheDiskIsEvictedAndItsSpaceComesBack gives the agent a file system of 64 MiB, which a pod fills.
func TestAPodThatFillsTheDiskIsEvictedAndItsSpaceComesBack(t *testing.T) {
	thresholds, err := eviction.Flags{Hard: map[string]string{"nodefs.available": "32Mi"}, TransitionPeriod: time.Second}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, func(c *node.Config) {
		c.Eviction = thresholds
		if err := os.MkdirAll(c.RootDir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", c.RootDir, "tmpfs", 0, "size=64m"); err != nil {
			t.Fatal(err)
		}
	})
	volume := func(script string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
			p.Spec.Containers[0] = sh("main", script+"; sleep 3600")
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "e", MountPath: "/e"}}
		}
	}
	m.pod("modest", volume("cat /bin/hello > /e/f"))
	m.awaitReady("modest")
	greedy := m.pod("greedy", volume("while cat /bin/hello >> /e/f; do true; done"))
	p := m.await("greedy", "evicted", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodFailed })
	if p.Status.Reason != "Evicted" || !strings.HasPrefix(p.Status.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: 32Mi, available: ") {
		t.Errorf("reason %s, message %q", p.Status.Reason, p.Status.Message)
	}
	m.await("modest", "running without pressure", func(p *v1.Pod) bool {
		n, err := m.client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeDiskPressure && c.LastTransitionTime.After(greedy.CreationTimestamp.Time) {
				return c.Status == v1.ConditionFalse && p.Status.Phase == v1.PodRunning
			}
		}
		return false
	})
	var disk unix.Statfs_t
	if err := unix.Statfs(m.cfg.RootDir, &disk); err != nil || disk.Bavail*uint64(disk.Bsize) < 40<<20 {
		t.Errorf("%d MiB are free, %v", disk.Bavail*uint64(disk.Bsize)>>20, err)
	}
}
