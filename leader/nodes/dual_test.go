package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/balsahq/balsa/leader/work"
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
	factory := informers.NewSharedInformerFactory(client, 0)
	env := work.Env{Name: t.Name(), Client: client, Reader: client, Informers: factory, Events: record.NewFakeRecorder(100), Log: slog.New(slog.DiscardHandler)}
	runner, err := NewRanges(env, RangeConfig{Cluster: netip.MustParsePrefix("10.244.0.0/16"), NodeBits: 24},
		RangeConfig{Cluster: netip.MustParsePrefix("fd00:244::/48"), NodeBits: 64})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	}()
	err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
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
	if err != nil {
		t.Fatal(err)
	}
}
