package nodesetup

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
)

// awaitNode reports the last milestone when this machine's Node is ready.
func (a Node) awaitNode(ctx context.Context) error {
	if !lifecycle.Await(ctx, a.APIReady) {
		return nil
	}
	retry := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 10 * time.Second}
	if err := retry.DelayFunc().Until(ctx, true, true, a.sawNodeReady); err != nil {
		return nil // ctx has ended: sawNodeReady returns no error
	}
	a.Progress.Reached(process.MilestoneNode)
	<-ctx.Done()
	return nil
}

// sawNodeReady watches this machine's Node until it is ready, and returns false when the watch fails or ends before. A
// failure is only logged: at boot, all servers may still be down.
func (a Node) sawNodeReady(ctx context.Context) (bool, error) {
	selector := fields.OneTermEqualSelector("metadata.name", a.Config.NodeName).String()
	w, err := a.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		if ctx.Err() == nil {
			a.Logger.Warn("cannot watch this node to see when it is ready; the next try is within 12 s", "node", a.Config.NodeName, "err", err)
		}
		return false, nil
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if n, ok := event.Object.(*corev1.Node); ok && isReady(n) {
			return true, nil
		}
	}
	return false, nil
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
