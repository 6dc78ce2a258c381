package node

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/balsahq/balsa/node/nodetest"
	"github.com/balsahq/balsa/node/shutdown"
)

func TestPodsEndInOrderBeforeTheMachineGoesDown(t *testing.T) {
	onBench(t, func(b *bench) {
		for name, priority := range map[string]int32{"plain": 0, "critical": 2000000000} {
			p, grace := named(name), int64(60)
			p.Spec.Priority, p.Spec.TerminationGracePeriodSeconds = &priority, &grace
			b.rt.Script(name, nodetest.Run{Stubborn: true})
			b.run(p)
		}
		b.wait(0)
		b.agent.cfg.Shutdown = []shutdown.Group{{Priority: 0, Grace: 20 * time.Second}, {Priority: 2000000000, Grace: 10 * time.Second}}
		down := make(chan struct{})
		go func() { defer close(down); b.agent.shutDown(context.Background()) }()
		b.wait(0)
		if c := b.nodeCondition(v1.NodeReady); c != "False KubeletNotReady" {
			t.Errorf("the node is %s", c)
		}
		b.run(named("late"))
		b.wait(10 * time.Second)
		if s := b.get("late").Status; s.Phase != v1.PodFailed || s.Reason != "NodeShutdown" || s.Message != "Pod was rejected: Pod was rejected as the node is shutting down." {
			t.Errorf("a pod that comes now: %s %s %q", s.Phase, s.Reason, s.Message)
		}
		if b.count("stop plain 20") != 1 || b.count("stop critical 10") != 0 || b.get("plain").Status.Phase != v1.PodRunning {
			t.Errorf("the critical pod does not wait for the others: %q", b.rt.Log())
		}
		<-down
		b.wait(time.Second)
		for _, name := range []string{"plain", "critical"} {
			s := b.get(name).Status
			_, c := podutil.GetPodCondition(&s, v1.DisruptionTarget)
			if s.Phase != v1.PodFailed || s.Reason != "Terminated" || s.Message != "Pod was terminated in response to imminent node shutdown." || c == nil || c.Reason != "TerminationByKubelet" {
				t.Errorf("%s: %s %s %q %+v", name, s.Phase, s.Reason, s.Message, c)
			}
		}
		b.agent.shutdownCancelled()
		b.wait(time.Second)
		b.run(named("next"))
		b.wait(time.Second)
		if c := b.nodeCondition(v1.NodeReady); c != "True KubeletReady" || b.get("next").Status.Phase != v1.PodRunning {
			t.Errorf("after the shutdown was cancelled the node is %s, a new pod %s", c, b.get("next").Status.Phase)
		}
	})
}

func TestARuntimeThatHangsMakesTheNodeNotReadyWithinTenSeconds(t *testing.T) {
	onBench(t, func(b *bench) {
		for range 5 { // at different times after the runtime has last answered
			b.wait(20 * time.Second)
			b.rt.Hang(true)
			b.wait(9 * time.Second)
			if c := b.nodeCondition(v1.NodeReady); c != "False KubeletNotReady" {
				t.Errorf("10 s after the runtime hangs: %s", c)
			}
			b.wait(time.Minute)
			l, err := b.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(context.Background(), "n1", metav1.GetOptions{})
			if err != nil || time.Since(l.Spec.RenewTime.Time) > leaseInterval {
				t.Errorf("the lease does not say that the node lives: %+v %v", l, err)
			}
			b.rt.Hang(false)
			b.wait(5 * time.Second)
			if c := b.nodeCondition(v1.NodeReady); c != "True KubeletReady" {
				t.Errorf("when it answers again: %s", c)
			}
		}
	})
}
