package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/node/nodetest"
	"github.com/balsahq/balsa/node/probe"
)

// broken is a method of the runtime that fails until it is mended.
type broken struct {
	calls  atomic.Int64
	mended atomic.Bool
}

// hot is where a loop without a delay is ended: in fake time it would go on for ever.
const hot = 5000

func (b *broken) fault() error {
	if b.mended.Load() {
		return nil
	}
	if b.calls.Add(1) > hot {
		b.mended.Store(true)
	}
	return errors.New("the runtime is broken")
}

// TestWhatFailsInTheRuntimeIsTriedAgainMoreAndMoreRarely: and works once the runtime does.
func TestWhatFailsInTheRuntimeIsTriedAgainMoreAndMoreRarely(t *testing.T) {
	const long = 10 * time.Minute
	// The delay doubles from 100 ms or 1 s up to 10 s: 60 tries in ten minutes and some at the beginning.
	const most = 70
	ready := func(b *bench) bool {
		p := b.get("p")
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Ready
	}
	restarted := func(b *bench) bool { return ready(b) && b.get("p").Status.ContainerStatuses[0].RestartCount == 1 }
	gone := func(b *bench) bool { return b.get("p") == nil }
	remove := func(b *bench) { b.delete("p", 1) }
	for name, c := range map[string]struct {
		method string
		runs   []nodetest.Run
		before bool         // the runtime is broken before the pod comes
		then   func(*bench) // what needs the method
		after  func(*bench) bool
		most   int64
	}{
		"RunPodSandbox":   {method: "RunPodSandbox", before: true, after: ready, most: most},
		"CreateContainer": {method: "CreateContainer", before: true, after: ready, most: most},
		"StartContainer":  {method: "StartContainer", before: true, after: ready, most: most},
		"StopContainer after a liveness failure": {method: "StopContainer", after: restarted, most: most, then: func(b *bench) {
			b.agent.probed("u", "c0", probe.Liveness, probe.Failure, "")
		}},
		"StopContainer of a deleted pod":    {method: "StopContainer", then: remove, after: gone, most: most},
		"StopPodSandbox of a deleted pod":   {method: "StopPodSandbox", then: remove, after: gone, most: most},
		"RemovePodSandbox of a deleted pod": {method: "RemovePodSandbox", then: remove, after: gone, most: most},
		// Ten minutes of crashes leave less than ten dead containers to remove at each try.
		"RemoveContainer of dead containers": {method: "RemoveContainer", before: true, runs: []nodetest.Run{{Lasts: time.Second, Exit: 1}},
			most: 10 * most, after: func(b *bench) bool {
				left, err := b.rt.ListContainers(context.Background(), nil)
				return err == nil && len(left) <= 3
			}},
		"UpdateContainerResources": {method: "UpdateContainerResources", most: most, then: func(b *bench) {
			p := b.get("p")
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
			if _, err := b.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
				b.t.Fatal(err)
			}
		}, after: func(b *bench) bool { return b.count("update c0") == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				var method broken
				if c.before {
					b.rt.Fail(c.method, method.fault)
				}
				if c.runs != nil {
					b.rt.Script("c0", c.runs...)
				}
				b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
				b.wait(0)
				if !c.before {
					b.rt.Fail(c.method, method.fault)
				}
				if c.then != nil {
					c.then(b)
				}
				b.wait(long)
				if calls := method.calls.Load(); calls > c.most || calls < 10 {
					t.Errorf("%d calls in %s, want 10 to %d", calls, long, c.most)
				}
				method.mended.Store(true)
				b.wait(10 * time.Minute) // a crash back-off may have to pass
				if !c.after(b) {
					t.Errorf("the runtime is mended, and the pod is %+v", b.get("p"))
				}
			})
		})
	}
}

func TestCrashingContainerBacksOff(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("c0", nodetest.Run{Lasts: time.Second, Exit: 1})
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		b.wait(2 * time.Second) // the first restart is at once
		if n := b.count("start c0"); n != 2 {
			t.Errorf("%d starts at first, want 2", n)
		}
		b.wait(time.Minute) // 10 s, 20 s; the next wait is 40 s
		p := b.get("p")
		st := p.Status.ContainerStatuses[0]
		if n := b.count("start c0"); n != 4 || st.RestartCount != 3 {
			t.Errorf("%d starts, %d restarts", n, st.RestartCount)
		}
		if st.State.Waiting == nil || st.State.Waiting.Reason != "CrashLoopBackOff" ||
			!strings.HasPrefix(st.State.Waiting.Message, "back-off 40s restarting failed container=c0 pod=p_ns(u)") {
			t.Errorf("state: %+v", st.State)
		}
		if st.LastTerminationState.Terminated == nil || st.LastTerminationState.Terminated.ExitCode != 1 || p.Status.Phase != v1.PodRunning {
			t.Errorf("last state: %+v, phase %s", st.LastTerminationState, p.Status.Phase)
		}
	})
}

// TestANewImageStartsAtOnce: the back-off belongs to the image that crashed.
func TestANewImageStartsAtOnce(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("c0", nodetest.Run{Lasts: time.Second, Exit: 1})
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		b.wait(time.Minute) // four starts; the next wait is 40 s
		p := b.get("p")
		p.Spec.Containers[0].Image = "other"
		if _, err := b.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.wait(0)
		if n := b.count("start c0"); n != 5 {
			t.Errorf("%d starts a second after the new image, want 5", n)
		}
		b.wait(5 * time.Second)
		if w := b.get("p").Status.ContainerStatuses[0].State.Waiting; w == nil || !strings.HasPrefix(w.Message, "back-off 10s ") {
			t.Errorf("the back-off does not begin anew: %+v", w)
		}
	})
}

func TestFailedPullBacksOffAndRecovers(t *testing.T) {
	onBench(t, func(b *bench) {
		no := errors.New("no route to registry")
		b.rt.Missing("im:latest", no, no)
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		b.wait(0)
		if w := b.get("p").Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ErrImagePull" {
			t.Errorf("at first: %+v", w)
		}
		b.wait(3 * time.Second)
		if w := b.get("p").Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ImagePullBackOff" {
			t.Errorf("then: %+v", w)
		}
		b.wait(40 * time.Second)
		if p := b.get("p"); p.Status.Phase != v1.PodRunning || b.count("pull im:latest") != 3 {
			t.Errorf("in the end: %+v, %v", p.Status, b.rt.Log())
		}
	})
}

func TestBackoffOutlivesTheAgent(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("c0", nodetest.Run{Lasts: time.Second, Exit: 1})
		b.run(nodetest.Pod(v1.RestartPolicyAlways, 0, 1))
		b.wait(20 * time.Second) // the third run has ended; the wait is 20 s
		b.stop()
		b.start()
		before := b.count("start c0")
		b.wait(2 * time.Second)
		if n := b.count("start c0"); n != before {
			t.Errorf("%d starts before, %d at once after the agent's restart", before, n)
		}
		b.wait(30 * time.Second)
		if n := b.count("start c0"); n != before+1 {
			t.Errorf("%d starts before, %d after the wait", before, n)
		}
	})
}
