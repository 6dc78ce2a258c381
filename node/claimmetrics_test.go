package node

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/podworker"
)

func TestEachMountedClaimIsMeasuredOnceAndOneThatHangsIsNotAskedAgain(t *testing.T) {
	pod := func(name string) *v1.Pod { return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}} }
	dir, hung := t.TempDir(), t.TempDir()
	m := &claimMetrics{busy: map[string]bool{hung: true}, views: func() map[types.UID]*podworker.View {
		return map[types.UID]*podworker.View{
			"a": {Pod: pod("a"), Claims: map[string]string{"data": dir, "nfs": hung}},
			"b": {Pod: pod("b"), Claims: map[string]string{"data": dir}},
			"c": {Pod: pod("c"), Claims: map[string]string{"gone": dir + "/none"}},
		}
	}}
	for range 2 { // a directory that has answered is asked again
		if n := testutil.CollectAndCount(m); n != len(claimRows) {
			t.Errorf("%d series, want those of one claim: %d", n, len(claimRows))
		}
	}
	if !m.busy[hung] || len(m.busy) != 1 {
		t.Errorf("busy: %v", m.busy)
	}
}
