package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

func drawNode(t *rapid.T, i int) *v1.Node {
	n := schedulertest.Node(fmt.Sprintf("n%d", i), fmt.Sprintf("%d", rapid.IntRange(1, 4).Draw(t, "cpu")), "4Gi",
		schedulertest.Label(v1.LabelTopologyZone, rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "zone")))
	if rapid.Bool().Draw(t, "tainted") {
		n.Spec.Taints = []v1.Taint{{Key: "special", Effect: v1.TaintEffectNoSchedule}}
	}
	return n
}

func drawPod(t *rapid.T, i int) *v1.Pod {
	app := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app")
	topology := rapid.SampledFrom([]string{v1.LabelHostname, v1.LabelTopologyZone}).Draw(t, "topology")
	other := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "other")
	p := schedulertest.Pod(fmt.Sprintf("p%d", i), schedulertest.Labelled("app", app),
		schedulertest.Requests(fmt.Sprintf("%dm", rapid.IntRange(0, 1500).Draw(t, "milli")), "64Mi"))
	if rapid.Bool().Draw(t, "tolerates") {
		p.Spec.Tolerations = []v1.Toleration{{Key: "special", Operator: v1.TolerationOpExists}}
	}
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		schedulertest.Far("app", other, topology)(p)
	case 1:
		schedulertest.Near("app", other, topology)(p)
	case 2:
		schedulertest.Spread("app", app, topology, 1, v1.DoNotSchedule)(p)
	case 3:
		schedulertest.Port(8080)(p)
	}
	return p
}

// TestNoRequiredRuleIsEverBroken places random pods on random nodes, takes some away again, and checks after each
// placement, by counting anew with plain loops, that no node is overcommitted and no required rule broken.
func TestNoRequiredRuleIsEverBroken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var objects []runtime.Object
		var nodes []*v1.Node
		for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
			nodes = append(nodes, drawNode(t, i))
			objects = append(objects, nodes[i])
		}
		cache, listers := schedulertest.Cluster(objects...)
		snap, d := snapshot.New(), testDecider()
		var placed []*v1.Pod
		for i := range rapid.IntRange(1, 25).Draw(t, "pods") {
			pod := drawPod(t, i)
			cache.Refresh(snap)
			v := d.decide(&rules.Cycle{Pod: schedulertest.Info(pod), Snapshot: snap, Listers: listers})
			if v.node != nil {
				pod.Spec.NodeName = v.node.Name()
				if broken := breaks(nodes, placed, pod); broken != "" {
					t.Fatalf("pod %s on %s: %s", pod.Name, pod.Spec.NodeName, broken)
				}
				cache.Put(schedulertest.Info(pod))
				placed = append(placed, pod)
			}
			if len(placed) > 0 && rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				gone := rapid.IntRange(0, len(placed)-1).Draw(t, "gone")
				cache.Remove(placed[gone].UID)
				placed = slices.Delete(placed, gone, gone+1)
			}
		}
	})
}

// breaks says which rule placing p beside the others breaks.
func breaks(nodes []*v1.Node, others []*v1.Pod, p *v1.Pod) string {
	node := func(q *v1.Pod) *v1.Node {
		return nodes[slices.IndexFunc(nodes, func(n *v1.Node) bool { return n.Name == q.Spec.NodeName })]
	}
	here := node(p)
	milli := p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
	for _, q := range others {
		if q.Spec.NodeName != p.Spec.NodeName {
			continue
		}
		milli += q.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		if len(p.Spec.Containers[0].Ports) > 0 && len(q.Spec.Containers[0].Ports) > 0 {
			return "host port taken twice"
		}
	}
	if milli > here.Status.Allocatable.Cpu().MilliValue() {
		return "overcommitted"
	}
	if len(here.Spec.Taints) > 0 && len(p.Spec.Tolerations) == 0 {
		return "taint not tolerated"
	}
	same := func(q *v1.Pod, key string) bool { return node(q).Labels[key] == here.Labels[key] }
	return breaksTerms(others, p, same) + breaksSpread(nodes, others, p, same)
}

func breaksTerms(others []*v1.Pod, p *v1.Pod, same func(*v1.Pod, string) bool) string {
	wants := func(q *v1.Pod) (near, far []v1.PodAffinityTerm) {
		if a := q.Spec.Affinity; a != nil && a.PodAffinity != nil {
			near = a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
		if a := q.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
			far = a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
		return near, far
	}
	matches := func(t v1.PodAffinityTerm, q *v1.Pod) bool {
		return t.LabelSelector.MatchLabels["app"] == q.Labels["app"]
	}
	near, far := wants(p)
	for _, t := range near {
		company := slices.ContainsFunc(others, func(q *v1.Pod) bool { return matches(t, q) && same(q, t.TopologyKey) })
		any := slices.ContainsFunc(others, func(q *v1.Pod) bool { return matches(t, q) })
		if !company && (any || !matches(t, p)) {
			return "affinity not met"
		}
	}
	for _, q := range others {
		for _, t := range far {
			if matches(t, q) && same(q, t.TopologyKey) {
				return "anti-affinity broken"
			}
		}
		_, theirs := wants(q)
		for _, t := range theirs {
			if matches(t, p) && same(q, t.TopologyKey) {
				return "another pod's anti-affinity broken"
			}
		}
	}
	return ""
}

func breaksSpread(nodes []*v1.Node, others []*v1.Pod, p *v1.Pod, same func(*v1.Pod, string) bool) string {
	for _, c := range p.Spec.TopologySpreadConstraints {
		domains := map[string]int{}
		for _, n := range nodes {
			domains[n.Labels[c.TopologyKey]] += 0
		}
		here := 1
		for _, q := range others {
			if q.Labels["app"] != p.Labels["app"] {
				continue
			}
			n := nodes[slices.IndexFunc(nodes, func(n *v1.Node) bool { return n.Name == q.Spec.NodeName })]
			domains[n.Labels[c.TopologyKey]]++
			if same(q, c.TopologyKey) {
				here++
			}
		}
		lowest := here
		for _, count := range domains {
			lowest = min(lowest, count)
		}
		if here-lowest > int(c.MaxSkew) {
			return "spread broken"
		}
	}
	return ""
}

func TestSameSeedSameDecisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var objects []runtime.Object
		for i := range rapid.IntRange(2, 6).Draw(t, "nodes") {
			objects = append(objects, drawNode(t, i))
		}
		var pods []*v1.Pod
		for i := range rapid.IntRange(1, 15).Draw(t, "pods") {
			pods = append(pods, drawPod(t, i))
		}
		seed := rapid.Uint64().Draw(t, "seed")
		run := func() (decisions []string) {
			cache, listers := schedulertest.Cluster(objects...)
			snap := snapshot.New()
			d := &decider{filters: rules.Filters(), scores: rules.Scores(), rand: rand.New(rand.NewPCG(seed, 0))}
			for _, p := range pods {
				cache.Refresh(snap)
				info := schedulertest.Info(p)
				v := d.decide(&rules.Cycle{Pod: info, Snapshot: snap, Listers: listers})
				if v.node == nil {
					decisions = append(decisions, v.explain(len(snap.Nodes)))
					continue
				}
				decisions = append(decisions, v.node.Name())
				if err := cache.Assume(info, v.node.Name()); err != nil {
					t.Fatal(err)
				}
			}
			return decisions
		}
		if a, b := run(), run(); !slices.Equal(a, b) {
			t.Fatalf("two runs differ:\n%q\n%q", a, b)
		}
	})
}
