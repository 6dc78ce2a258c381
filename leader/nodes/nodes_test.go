package nodes

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// Handing out ranges one after the other, with some given back in between, never hands one out twice, and uses all.
func TestRangesAreNeverGivenTwice(t *testing.T) {
	cfg := RangeConfig{Cluster: netip.MustParsePrefix("10.244.0.0/20"), NodeBits: 24}
	rapid.Check(t, func(t *rapid.T) {
		var taken []netip.Prefix
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(taken) > 0 && rapid.Bool().Draw(t, "give back") {
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				taken = append(taken[:i], taken[i+1:]...)
				continue
			}
			p, err := cfg.nextFree(taken)
			if len(taken) == 16 {
				if !errors.Is(err, ErrRangesExhausted) {
					t.Fatalf("gave %s with all taken", p)
				}
				continue
			}
			if err != nil || p.Bits() != 24 || !cfg.Cluster.Contains(p.Addr()) || overlapsAny(p, taken) {
				t.Fatalf("%s (%v) with %v taken", p, err, taken)
			}
			taken = append(taken, p)
		}
	})
}

func TestRangesAvoidOnesOfAnotherSize(t *testing.T) {
	cfg := RangeConfig{Cluster: netip.MustParsePrefix("10.244.0.0/16"), NodeBits: 24}
	p, err := cfg.nextFree([]netip.Prefix{netip.MustParsePrefix("10.244.0.0/23"), netip.MustParsePrefix("10.244.2.0/24")})
	if err != nil || p.String() != "10.244.3.0/24" {
		t.Fatal(p, err)
	}
	v6 := RangeConfig{Cluster: netip.MustParsePrefix("fd00:10::/48"), NodeBits: 64}
	if p, err := v6.nextFree([]netip.Prefix{netip.MustParsePrefix("fd00:10::/64")}); err != nil || p.String() != "fd00:10:0:1::/64" {
		t.Fatal(p, err)
	}
}

func nodeWith(conditions map[v1.NodeConditionType]v1.ConditionStatus, taints ...v1.Taint) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1.NodeSpec{Taints: taints}}
	for t, s := range conditions {
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: t, Status: s})
	}
	return n
}

func TestTaintsFollowConditions(t *testing.T) {
	mine := v1.Taint{Key: "dedicated", Value: "db", Effect: v1.TaintEffectNoSchedule}
	stale := v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}
	for _, c := range []struct {
		name  string
		node  *v1.Node
		evict bool
		want  []string
	}{
		{"ready", nodeWith(map[v1.NodeConditionType]v1.ConditionStatus{v1.NodeReady: v1.ConditionTrue}, mine, stale), true, []string{"dedicated:NoSchedule"}},
		{"not ready", nodeWith(map[v1.NodeConditionType]v1.ConditionStatus{v1.NodeReady: v1.ConditionFalse}, mine), true,
			[]string{"dedicated:NoSchedule", "node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"}},
		{"unreachable, nobody else is ready", nodeWith(map[v1.NodeConditionType]v1.ConditionStatus{v1.NodeReady: v1.ConditionUnknown}), false,
			[]string{"node.kubernetes.io/unreachable:NoSchedule"}},
		{"full disk", nodeWith(map[v1.NodeConditionType]v1.ConditionStatus{v1.NodeReady: v1.ConditionTrue, v1.NodeDiskPressure: v1.ConditionTrue}), true,
			[]string{"node.kubernetes.io/disk-pressure:NoSchedule"}},
	} {
		got, _ := taintsFor(c.node, c.evict, now)
		var text []string
		for _, x := range got {
			text = append(text, fmt.Sprintf("%s:%s", x.Key, x.Effect))
		}
		if fmt.Sprint(text) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, text, c.want)
		}
		c.node.Spec.Taints = got
		if _, changed := taintsFor(c.node, c.evict, now.Add(time.Hour)); changed {
			t.Errorf("%s: the second look changes the taints again", c.name)
		}
	}
}

func TestSilenceMakesConditionsUnknownOnce(t *testing.T) {
	n := nodeWith(map[v1.NodeConditionType]v1.ConditionStatus{v1.NodeReady: v1.ConditionTrue, "Custom": v1.ConditionTrue})
	n.Status.Conditions = unknownConditions(n, now)
	if len(n.Status.Conditions) != 5 || !unknown(n) || nodeCondition(n, "Custom").Status != v1.ConditionTrue {
		t.Fatalf("%+v", n.Status.Conditions)
	}
	if unknownConditions(n, now.Add(time.Hour)) != nil {
		t.Fatal("said twice")
	}
}

func TestPulseUsesTheLongerOfGraceAndLease(t *testing.T) {
	p := newPulse(50 * time.Second)
	if left := p.left("n", now); left != 50*time.Second {
		t.Fatalf("%s for a node never heard of", left)
	}
	forty, five := int32(40), int32(300)
	p.renewed(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &forty}}, now)
	if left := p.left("n", now.Add(20*time.Second)); left != 30*time.Second {
		t.Fatal(left)
	}
	p.renewed(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &five}}, now)
	if left := p.left("n", now); left != 375*time.Second {
		t.Fatal(left)
	}
}

func TestJudgeEvictions(t *testing.T) {
	at := metav1.NewTime(now)
	notReady := v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoExecute, TimeAdded: &at}
	custom := v1.Taint{Key: "maintenance", Value: "yes", Effect: v1.TaintEffectNoExecute}
	soft := v1.Taint{Key: "soft", Effect: v1.TaintEffectNoSchedule}
	sec := func(n int64) *int64 { return &n }
	forever := v1.Toleration{Operator: v1.TolerationOpExists}
	fiveMinutes := v1.Toleration{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: sec(300)}
	for _, c := range []struct {
		name        string
		tolerations []v1.Toleration
		taints      []v1.Taint
		want        evictionDecision
	}{
		{"no taint", nil, []v1.Taint{soft}, evictionDecision{}},
		{"not tolerated", nil, []v1.Taint{custom}, evictionDecision{evict: true}},
		{"wrong value", []v1.Toleration{{Key: "maintenance", Value: "no"}}, []v1.Taint{custom}, evictionDecision{evict: true}},
		{"right value", []v1.Toleration{{Key: "maintenance", Value: "yes"}}, []v1.Taint{custom}, evictionDecision{}},
		{"tolerates all", []v1.Toleration{forever}, []v1.Taint{custom, notReady}, evictionDecision{}},
		{"for a while", []v1.Toleration{fiveMinutes}, []v1.Taint{notReady}, evictionDecision{evict: true, after: 5 * time.Minute, since: now}},
		{"the shortest counts", []v1.Toleration{fiveMinutes, {Key: "maintenance", Operator: v1.TolerationOpExists, TolerationSeconds: sec(10)}}, []v1.Taint{notReady, custom}, evictionDecision{evict: true, after: 10 * time.Second}},
		{"one of two not tolerated", []v1.Toleration{fiveMinutes}, []v1.Taint{notReady, custom}, evictionDecision{evict: true}},
		{"negative is at once", []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: sec(-1)}}, []v1.Taint{custom}, evictionDecision{evict: true}},
	} {
		if got := decideEviction(c.tolerations, c.taints); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestSurplusOfEndedPodsTakesEvictedAndOldestFirst(t *testing.T) {
	pod := func(name string, phase v1.PodPhase, reason string, age time.Duration) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-age))}, Status: v1.PodStatus{Phase: phase, Reason: reason}}
	}
	got := surplus([]*v1.Pod{
		pod("new", v1.PodSucceeded, "", time.Minute), pod("old", v1.PodFailed, "", time.Hour),
		pod("evicted", v1.PodFailed, "Evicted", time.Second), pod("running", v1.PodRunning, "", 2*time.Hour),
	}, 1)
	if len(got) != 2 || got[0].Name != "evicted" || got[1].Name != "old" {
		t.Fatal(got)
	}
}

func TestMostNodesAtOnceAreNotEvicted(t *testing.T) {
	for _, c := range []struct {
		total, unwell int
		want          bool
	}{
		{1, 1, false}, {2, 1, true}, {2, 2, false}, {3, 2, true}, {3, 3, false},
		{4, 2, true}, {4, 3, false}, {6, 3, true}, {6, 4, false}, {100, 50, true}, {100, 51, false},
	} {
		if got := evictable(c.total, c.unwell); got != c.want {
			t.Errorf("%d of %d: %v, want %v", c.unwell, c.total, got, c.want)
		}
	}
}

func TestALivenessVerdictHoldsUntilTheNodeIsHeardOrTakenBack(t *testing.T) {
	p := newPulse(50 * time.Second)
	p.heard("n", now)
	if !p.record("n", true, now.Add(time.Second)) || p.record("n", true, now.Add(2*time.Second)) {
		t.Fatal("a verdict is news once")
	}
	if left := p.left("n", now.Add(2*time.Second)); left != 0 || !p.dead("n", now.Add(2*time.Second)) {
		t.Fatalf("%s left for a node given up", left)
	}
	p.heard("n", now.Add(3*time.Second)) // its own word counts more
	if left := p.left("n", now.Add(3*time.Second)); left != 50*time.Second {
		t.Fatalf("%s left for a node that renewed its Lease", left)
	}
	if !p.record("n", false, now.Add(4*time.Second)) || p.left("n", now.Add(4*time.Second)) != 50*time.Second {
		t.Fatal("a node that is back gets its whole time")
	}
	if left := p.left("n", now.Add(time.Minute)); left > 0 {
		t.Fatalf("%s left for a node that gossips but never renews its Lease", left)
	}
}
