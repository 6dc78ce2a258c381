package pods

import (
	"context"
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Disruption is why a pod is about to be deleted. Phase is the pod's last; "" leaves it.
type Disruption struct {
	Reason, Message string
	Phase           v1.PodPhase
}

// Disrupt writes a disruption into the status of the pod, which still exists then.
func Disrupt(ctx context.Context, client kubernetes.Interface, p *v1.Pod, d Disruption) error {
	status := p.Status.DeepCopy()
	changed := SetCondition(status, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: d.Reason, Message: d.Message,
		LastTransitionTime: metav1.Now(), ObservedGeneration: p.Generation,
	})
	if d.Phase != "" && status.Phase != d.Phase {
		status.Phase, changed = d.Phase, true
	}
	if !changed {
		return nil
	}
	body := map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status":   map[string]any{"phase": status.Phase, "conditions": []v1.PodCondition{*Condition(&v1.Pod{Status: *status}, v1.DisruptionTarget)}},
	}
	patch, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
