package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/node/eviction"
	"github.com/balsahq/balsa/node/shutdown"
)

// pressure refuses pods while the node runs short of something; critical pods may come. While memory alone is short, pods
// that request memory may come too, and those that tolerate its taint.
func pressure(in Input) *Refusal {
	if len(in.Pressure) == 0 || eviction.Critical(in.Pod) {
		return nil
	}
	if len(in.Pressure) == 1 && in.Pressure[0] == v1.NodeMemoryPressure {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if v1qos.GetPodQOS(in.Pod) != v1.PodQOSBestEffort || corev1.TolerationsTolerateTaint(klog.Background(), in.Pod.Spec.Tolerations, taint, true) {
			return nil
		}
	}
	return &Refusal{eviction.Reason, fmt.Sprintf("The node had condition: %v. ", in.Pressure)}
}

// shuttingDown refuses every pod while the machine is about to go down.
func shuttingDown(in Input) *Refusal {
	if in.ShuttingDown {
		return &Refusal{shutdown.RefusalReason, shutdown.RefusalMessage}
	}
	return nil
}
