package nodetest

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod returns a pod "p" of namespace "ns" with UID "u", init containers i0, i1, … and containers c0, c1, ….
func Pod(policy v1.RestartPolicy, inits, mains int) *v1.Pod {
	grace := int64(5)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec: v1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: &grace}}
	for i := range inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: fmt.Sprintf("i%d", i), Image: "im"})
	}
	for i := range mains {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprintf("c%d", i), Image: "im"})
	}
	return p
}
