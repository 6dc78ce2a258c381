package realtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	noderuntime "github.com/balsahq/balsa/node/runtime"
)

// TestPodsOfARuntimeClass runs a pod with a runtime that is installed under the name of crun, and one whose class names a handler
// that the node does not have. The program notes its calls and is otherwise the default runtime: what the distributions'
// crun can depends on its version.
func TestPodsOfARuntimeClass(t *testing.T) {
	installed := t.TempDir()
	calls := filepath.Join(installed, "calls")
	m := newMachineWith(t, func(c *noderuntime.Config) {
		script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\nexec %s/runc \"$@\"\n", calls, c.BinDir)
		if err := os.WriteFile(filepath.Join(installed, "crun"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		c.ProgramDirs = []string{installed}
	})
	ctx := context.Background()
	for _, handler := range []string{"crun", "none"} {
		if _, err := m.client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "with-" + handler}, Handler: handler}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		class := "with-" + handler
		m.pod(handler, func(p *v1.Pod) { p.Spec.RuntimeClassName = &class })
	}
	p := m.await("crun", "running", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodRunning })
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	if log := readFile(calls); !strings.Contains(log, id) {
		t.Errorf("the container was not made by crun, which was called with\n%s", log)
	}
	m.awaitEvent("FailedCreatePodSandBox", `no handler "none", which RuntimeClass "with-none" names; it has crun, runc`)
	n, err := m.client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil || !slices.ContainsFunc(n.Status.RuntimeHandlers, func(h v1.NodeRuntimeHandler) bool { return h.Name == "crun" }) {
		t.Errorf("handlers of the Node: %+v %v", n.Status.RuntimeHandlers, err)
	}
	for _, name := range []string{"crun", "none"} {
		m.deletePod(name)
		m.await(name, "gone", func(p *v1.Pod) bool { return p == nil })
	}
	m.awaitNothing(p.UID)
}
