package daemonset

import (
	"sort"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/balsahq/balsa/leader/pods"
)

// view is all a decision looks at.
type view struct {
	ds    *apps.DaemonSet
	nodes []*v1.Node
	pods  map[string][]*v1.Pod // by node; none of them has another owner
	hash  string               // of the present template
	now   time.Time
	// retry says whether a failed pod on the node may be replaced now, or else how long that has to wait.
	retry func(node string) (wait time.Duration)
}

// plan is the set of actions of one reconcile.
type plan struct {
	create []string // node names
	remove []*v1.Pod
	again  time.Duration
}

func (p *plan) later(d time.Duration) {
	if d > 0 && (p.again == 0 || d < p.again) {
		p.again = d
	}
}

func (v *view) available(p *v1.Pod) bool {
	ok, _ := pods.Available(p, time.Duration(v.ds.Spec.MinReadySeconds)*time.Second, v.now)
	return ok
}

func (v *view) updated(p *v1.Pod) bool {
	if p.Labels[apps.ControllerRevisionHashLabelKey] == v.hash {
		return true
	}
	g := v.ds.Annotations[apps.DeprecatedTemplateGeneration]
	return g != "" && p.Labels["pod-template-generation"] == g
}

// decide first puts every node in order; only when that needs nothing does a rolling update go on.
func decide(v view) plan {
	sorted := append([]*v1.Node(nil), v.nodes...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	v.nodes = sorted
	for _, list := range v.pods {
		sort.SliceStable(list, func(i, j int) bool { return elder(list[i], list[j]) })
	}
	var p plan
	for _, n := range v.nodes {
		v.manage(n, &p)
	}
	v.strays(&p)
	if len(p.create)+len(p.remove) == 0 && v.ds.Spec.UpdateStrategy.Type == apps.RollingUpdateDaemonSetStrategyType {
		surge, unavailable := v.limits()
		if surge > 0 {
			v.rollBySurge(surge, &p)
		} else {
			v.roll(unavailable, &p)
		}
	}
	return p
}

// elder puts pods that run before those that do not yet, then the oldest first.
func elder(a, b *v1.Pod) bool {
	if (a.Spec.NodeName != "") != (b.Spec.NodeName != "") {
		return a.Spec.NodeName != ""
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// strays are pods for nodes that are gone; those bound to them are the pod collector's.
func (v *view) strays(p *plan) {
	known := map[string]bool{}
	for _, n := range v.nodes {
		known[n.Name] = true
	}
	for node, list := range v.pods {
		if known[node] {
			continue
		}
		for _, pod := range list {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				p.remove = append(p.remove, pod)
			}
		}
	}
}

// manage sees to it that a node has the pods it should, not more, and none that ended.
func (v *view) manage(n *v1.Node, p *plan) {
	here := v.pods[n.Name]
	run, stay := fits(v.ds, n)
	if !stay {
		for _, pod := range here {
			if pod.DeletionTimestamp == nil {
				p.remove = append(p.remove, pod)
			}
		}
		return
	}
	var live []*v1.Pod
	for _, pod := range here {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == v1.PodFailed:
			if wait := v.retry(n.Name); wait > 0 {
				p.later(wait)
				continue
			}
			p.remove = append(p.remove, pod)
		case pod.Status.Phase == v1.PodSucceeded:
			p.remove = append(p.remove, pod)
		default:
			live = append(live, pod)
		}
	}
	surge, _ := v.limits()
	switch {
	case run && len(here) == 0, run && surge > 0 && len(live) == 0:
		p.create = append(p.create, n.Name)
	case surge == 0 && len(live) > 1:
		p.remove = append(p.remove, live[1:]...)
	case surge > 0 && len(live) > 1:
		v.prune(live, p)
	}
}

// prune leaves at most one old and one new pod on a node, and the old one only while it is ready and the new one is not
// yet available.
func (v *view) prune(live []*v1.Pod, p *plan) {
	var old, now *v1.Pod
	for _, pod := range live {
		switch {
		case v.updated(pod) && now == nil:
			now = pod
		case !v.updated(pod) && old == nil:
			old = pod
		default:
			p.remove = append(p.remove, pod)
		}
	}
	if old != nil && now != nil && (!pods.Ready(old) || v.available(now)) {
		p.remove = append(p.remove, old)
	}
}

// limits resolves maxSurge and maxUnavailable; at least one is positive where there is a node to run on.
func (v *view) limits() (surge, unavailable int) {
	r := v.ds.Spec.UpdateStrategy.RollingUpdate
	if v.ds.Spec.UpdateStrategy.Type != apps.RollingUpdateDaemonSetStrategyType || r == nil {
		return 0, 0
	}
	n := 0
	for _, node := range v.nodes {
		if run, _ := fits(v.ds, node); run {
			n++
		}
	}
	surge, unavailable = scaled(r.MaxSurge, n), scaled(r.MaxUnavailable, n)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func scaled(v *intstr.IntOrString, n int) int {
	if v == nil {
		return 0
	}
	out, err := intstr.GetScaledValueFromIntOrPercent(v, n, true)
	if err != nil {
		return 0 // validation keeps it out
	}
	return out
}

// pair finds the one pod of the present template and the one of an older that live on a node; ok is false when there are
// more, which manage sorts out first.
func (v *view) pair(list []*v1.Pod) (now, old *v1.Pod, ok bool) {
	for _, pod := range list {
		if pod.DeletionTimestamp != nil {
			continue
		}
		switch {
		case v.updated(pod) && now == nil:
			now = pod
		case !v.updated(pod) && old == nil:
			old = pod
		default:
			return nil, nil, false
		}
	}
	return now, old, true
}

// roll deletes old pods so that no more than unavailable nodes are without an available one. Those that are not available
// anyway go at once.
func (v *view) roll(unavailable int, p *plan) {
	down := 0
	var candidates []*v1.Pod
	for _, n := range v.nodes {
		list := v.pods[n.Name]
		if run, _ := fits(v.ds, n); !run && len(list) == 0 {
			continue
		}
		now, old, ok := v.pair(list)
		switch {
		case !ok, (now == nil) == (old == nil):
			down++
		case now != nil:
			if !v.available(now) {
				down++
			}
		case !v.available(old):
			p.remove = append(p.remove, old)
			down++
		default:
			candidates = append(candidates, old)
		}
	}
	p.remove = append(p.remove, candidates[:min(len(candidates), max(0, unavailable-down))]...)
}

// rollBySurge starts new pods beside old ones, at most surge at a time, and deletes an old one when its successor is
// available. A node whose old pod does not work gets its successor at once.
func (v *view) rollBySurge(surge int, p *plan) {
	under, working, wanted := 0, 0, 0
	var candidates []string
	var leaving []*v1.Pod
	for _, n := range v.nodes {
		run, _ := fits(v.ds, n)
		if run {
			wanted++
		}
		now, old, ok := v.pair(v.pods[n.Name])
		if !ok {
			under++
			continue
		}
		if old != nil && v.available(old) || old == nil && now != nil && v.available(now) {
			working++
		}
		switch {
		case old == nil:
		case now != nil && v.available(now):
			p.remove = append(p.remove, old)
		case now != nil:
			under++
		case !v.available(old) && !run:
			p.remove = append(p.remove, old)
		case !v.available(old):
			p.create = append(p.create, n.Name)
		case !run:
			leaving = append(leaving, old)
		default:
			candidates = append(candidates, n.Name)
		}
	}
	p.remove = append(p.remove, leaving[:min(len(leaving), max(0, working-wanted))]...)
	p.create = append(p.create, candidates[:min(len(candidates), max(0, surge-under))]...)
}

// statusOf counts nodes, and says how long until a ready pod becomes available (zero: none is waiting).
func statusOf(v view) (apps.DaemonSetStatus, time.Duration) {
	s := *v.ds.Status.DeepCopy()
	s.ObservedGeneration = v.ds.Generation
	s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberMisscheduled = 0, 0, 0
	s.NumberReady, s.NumberAvailable, s.UpdatedNumberScheduled = 0, 0, 0
	var next plan
	for _, n := range v.nodes {
		list := v.pods[n.Name]
		run, _ := fits(v.ds, n)
		if !run {
			if len(list) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(list) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		pod := list[0]
		if pods.Ready(pod) {
			s.NumberReady++
			ok, wait := pods.Available(pod, time.Duration(v.ds.Spec.MinReadySeconds)*time.Second, v.now)
			if ok {
				s.NumberAvailable++
			}
			next.later(wait)
		}
		if v.updated(pod) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s, next.again
}
