package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// TestNodesWithoutARangeWaitForOneToBeGivenBack: there are two shares for six nodes. Four say once that there is none, do
// nothing while nodes report their state, and are served one by one as others leave.
func TestNodesWithoutARangeWaitForOneToBeGivenBack(t *testing.T) {
	client := fake.NewClientset()
	events := workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) {
		return NewRanges(e, RangeConfig{Cluster: netip.MustParsePrefix("10.244.0.0/23"), NodeBits: 24})
	})
	api := client.CoreV1().Nodes()
	for i := range 6 {
		name := fmt.Sprintf("n%d", i)
		if _, err := api.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	served := func() (with, without []v1.Node) {
		list, err := api.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range list.Items {
			if n.Spec.PodCIDR != "" {
				with = append(with, n)
			} else {
				without = append(without, n)
			}
		}
		return with, without
	}
	for range 4 {
		if e := <-events; !strings.Contains(e, "CIDRNotAvailable") {
			t.Fatal(e)
		}
	}
	_, waiting := served()
	for range 20 {
		for i := range waiting {
			waiting[i].Labels = map[string]string{"beat": fmt.Sprint(len(waiting[i].Labels["beat"]))}
			if _, err := api.Update(t.Context(), &waiting[i], metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := api.Delete(t.Context(), waiting[0].Name, metav1.DeleteOptions{}); err != nil { // one that waits may leave
		t.Fatal(err)
	}
	for left := 3; left > 0; left-- {
		with, _ := served()
		if err := api.Delete(t.Context(), with[0].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		workqueuetest.Eventually(t, "one more is served", func(context.Context) (bool, error) {
			with, without := served()
			return len(with) == 2 && len(without) == left-1, nil
		})
	}
	if len(events) != 0 {
		t.Errorf("told again: %s", <-events)
	}
}
