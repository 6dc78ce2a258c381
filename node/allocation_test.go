package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"

	"github.com/balsahq/balsa/node/nodetest"
)

func TestAPodWhoseDevicesAreAwayFailsAndNothingOfItRuns(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		dir := filepath.Join(b.dir, "agent", "device-plugins")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		// The agent knows the resource from before; its plug-in has not registered yet.
		if err := os.WriteFile(filepath.Join(dir, "balsa_allocations.json"), []byte(`{"resources":["example.com/gpu"]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		b.start()
		if q, there := b.agent.Node().Status.Allocatable["example.com/gpu"]; !there || !q.IsZero() {
			t.Errorf("allocatable %s, there: %t; want 0", q.String(), there)
		}
		p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"example.com/gpu": quantity.MustParse("1")}
		b.run(p)
		b.wait(0)
		s := b.get("p").Status
		if s.Phase != v1.PodFailed || s.Reason != "UnexpectedAdmissionError" || !strings.HasPrefix(s.Message, "Pod was rejected: Allocate failed due to ") {
			t.Errorf("status: %+v", s)
		}
		if n := b.count("start c0"); n != 0 {
			t.Errorf("course: %v", b.rt.Log())
		}
	})
}
