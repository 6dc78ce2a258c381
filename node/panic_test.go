package node

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podworker"
	"github.com/balsahq/balsa/node/volume"

	"github.com/balsahq/balsa/node/nodetest"
)

// oddVolumes panics for the pod p as often as left says.
type oddVolumes struct {
	podworker.Volumes
	left atomic.Int32
}

func (o *oddVolumes) SetUp(ctx context.Context, pod *v1.Pod) (volume.Mounts, error) {
	if pod.Name == "p" && o.left.Add(-1) >= 0 {
		panic("a volume nobody expected")
	}
	return o.Volumes.SetUp(ctx, pod)
}

func TestAPodWhoseHandlingPanicsSaysSoAndKeepsBackNoOther(t *testing.T) {
	onBench(t, func(b *bench) {
		odd := &oddVolumes{Volumes: b.agent.volumes}
		odd.left.Store(3)
		b.agent.host.Volumes = odd
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		other := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
		other.Name, other.UID = "other", "other"
		b.run(other)
		b.wait(0)
		if p := b.get("other"); p.Status.Phase != v1.PodRunning {
			t.Errorf("the other pod: %s", p.Status.Phase)
		}
		_, c := podutil.GetPodCondition(&b.get("p").Status, podloop.Panicked)
		if c == nil || c.Status != v1.ConditionTrue || !strings.Contains(c.Message, "a volume nobody expected") {
			t.Errorf("the pod does not say so: %+v", c)
		}
		b.wait(30 * time.Second) // it is left alone for 1, 2 and 4 s
		p := b.get("p")
		if _, c := podutil.GetPodCondition(&p.Status, podloop.Panicked); p.Status.Phase != v1.PodRunning || c != nil {
			t.Errorf("in the end: %s, %+v", p.Status.Phase, c)
		}
	})
}
