package node

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/node/nodetest"
)

func TestAllContainersRestart(t *testing.T) {
	onBench(t, func(b *bench) {
		b.rt.Script("i0", nodetest.Run{Lasts: time.Second})
		b.rt.Script("c0", nodetest.Run{Lasts: 5 * time.Second, Exit: 42}, nodetest.Run{})
		p := nodetest.Pod(v1.RestartPolicyNever, 1, 2)
		never := v1.ContainerRestartPolicyNever
		p.Spec.Containers[0].RestartPolicy = &never
		p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}
		b.run(p)
		b.wait(20 * time.Second)
		check := func() {
			t.Helper()
			p := b.get("p")
			for _, st := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
				if st.RestartCount != 1 || st.LastTerminationState.Terminated == nil {
					t.Errorf("%s: %+v", st.Name, st)
				}
			}
			if p.Status.Phase != v1.PodRunning || b.count("start i0") != 2 || b.count("start c0") != 2 || b.count("start c1") != 2 {
				t.Errorf("phase %s, %v", p.Status.Phase, b.rt.Log())
			}
		}
		check()
		b.stop()
		b.start() // which does not take the run that ended with 42 for a new one
		b.wait(time.Minute)
		check()
	})
}
