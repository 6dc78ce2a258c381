package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// TestNodesGetASharePerFamily: the first is spec.podCIDR, as the API demands, and no two nodes have one.
func TestNodesGetASharePerFamily(t *testing.T) {
	client := fake.NewClientset()
	for i := range 5 {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("u", i))}}
		if err := client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) {
		return NewRanges(e, RangeConfig{Cluster: netip.MustParsePrefix("10.244.0.0/16"), NodeBits: 24},
			RangeConfig{Cluster: netip.MustParsePrefix("fd00:244::/48"), NodeBits: 64})
	})
	workqueuetest.Eventually(t, "every node has a share of each family", func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var given []netip.Prefix
		for _, n := range list.Items {
			if len(n.Spec.PodCIDRs) != 2 {
				return false, nil
			}
			if n.Spec.PodCIDR != n.Spec.PodCIDRs[0] {
				return false, fmt.Errorf("podCIDR %s, podCIDRs %v", n.Spec.PodCIDR, n.Spec.PodCIDRs)
			}
			for i, bits := range []int{24, 64} {
				p := netip.MustParsePrefix(n.Spec.PodCIDRs[i])
				if p.Bits() != bits || overlapsAny(p, given) {
					return false, fmt.Errorf("%s has %s, others have %v", n.Name, p, given)
				}
				given = append(given, p)
			}
		}
		return true, nil
	})
}
