package statefulset

import (
	"sort"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/pods"
)

// template is a pod template under the name of its revision.
type template struct {
	revision string
	spec     *v1.PodTemplateSpec
}

// view is all a decision looks at.
type view struct {
	set             *apps.StatefulSet
	current, update template
	pods            []*v1.Pod // it controls
	now             time.Time
}

// plan is the list of actions of one reconcile, in this order.
type plan struct {
	fix    []*v1.Pod // give them their labels and claims
	create []*v1.Pod
	remove []*v1.Pod
	again  time.Duration
}

func (p *plan) later(d time.Duration) {
	if d > 0 && (p.again == 0 || d < p.again) {
		p.again = d
	}
}

func ending(p *v1.Pod) bool { return p.DeletionTimestamp != nil }

func (v *view) available(p *v1.Pod, out *plan) bool {
	if p.Status.Phase != v1.PodRunning || ending(p) {
		return false
	}
	ok, wait := pods.Available(p, time.Duration(v.set.Spec.MinReadySeconds)*time.Second, v.now)
	out.later(wait)
	return ok
}

// decide brings the pods of a set into order: every ordinal has its pod, none has one too many, and then, one at a time
// from the highest down, those of an older template are replaced. In an ordered set each step waits until the pods before
// it are available.
func decide(v view) plan {
	var p plan
	if v.set.DeletionTimestamp != nil {
		return p
	}
	here := map[int]*v1.Pod{}
	var condemned []*v1.Pod
	for _, pod := range v.pods {
		i := ordinalOf(v.set, pod)
		switch {
		case i < 0:
		case wanted(v.set, i):
			here[i] = pod
		default:
			condemned = append(condemned, pod)
		}
	}
	sort.Slice(condemned, func(i, j int) bool { return ordinalOf(v.set, condemned[i]) > ordinalOf(v.set, condemned[j]) })

	if !v.fill(here, &p) || !v.shrink(here, condemned, &p) {
		return p
	}
	v.roll(here, &p)
	return p
}

func (v *view) ordered() bool { return v.set.Spec.PodManagementPolicy != apps.ParallelPodManagement }

// fill sees to the pods that should be there. It returns false when the next step has to wait.
func (v *view) fill(here map[int]*v1.Pod, p *plan) bool {
	proceed := true
	first := firstOrdinal(v.set)
	for i := first; i < first+replicas(v.set); i++ {
		pod := here[i]
		done := true
		switch {
		case pod == nil:
			p.create = append(p.create, v.newPod(i))
			done = !v.ordered()
		case pods.Terminal(pod):
			if !ending(pod) {
				p.remove = append(p.remove, pod)
			}
			done, proceed = false, false
		default:
			if !identified(pod, i) || pod.Status.Phase == v1.PodPending || v.set.Spec.PersistentVolumeClaimRetentionPolicy != nil {
				p.fix = append(p.fix, pod)
			}
			done = v.available(pod, p)
		}
		if v.ordered() && !done {
			return false
		}
	}
	return proceed
}

// newPod is of the current template below the partition, and of the new one from there on.
func (v *view) newPod(ordinal int) *v1.Pod {
	t := v.update
	if v.set.Spec.UpdateStrategy.Type == apps.RollingUpdateStatefulSetStrategyType {
		keep := int(v.set.Status.CurrentReplicas)
		if r := v.set.Spec.UpdateStrategy.RollingUpdate; r != nil {
			keep = partition(r)
		}
		if ordinal < firstOrdinal(v.set)+keep {
			t = v.current
		}
	}
	return newPod(v.set, t.spec, t.revision, ordinal)
}

func partition(r *apps.RollingUpdateStatefulSetStrategy) int {
	if r.Partition == nil {
		return 0
	}
	return int(*r.Partition)
}

// shrink deletes the pods beyond the set's size from the highest down. It returns false when the next step has to wait.
func (v *view) shrink(here map[int]*v1.Pod, condemned []*v1.Pod, p *plan) bool {
	if v.set.Spec.PersistentVolumeClaimRetentionPolicy != nil {
		p.fix = append(p.fix, condemned...)
	}
	unhealthy := v.firstUnavailable(here, condemned, p)
	for _, pod := range condemned {
		switch {
		case ending(pod):
			if v.ordered() {
				return false
			}
		case v.ordered() && !v.available(pod, p) && pod != unhealthy:
			return false
		default:
			p.remove = append(p.remove, pod)
			if v.ordered() {
				return false
			}
		}
	}
	return len(condemned) == 0
}

// firstUnavailable is the lowest pod that is not available: the one a scale-down may delete although it is not.
func (v *view) firstUnavailable(here map[int]*v1.Pod, condemned []*v1.Pod, p *plan) *v1.Pod {
	first := firstOrdinal(v.set)
	for i := first; i < first+replicas(v.set); i++ {
		if pod := here[i]; pod != nil && !v.available(pod, p) {
			return pod
		}
	}
	for i := len(condemned) - 1; i >= 0; i-- {
		if !v.available(condemned[i], p) {
			return condemned[i]
		}
	}
	return nil
}

// roll deletes the highest pod of an older template, once all above it are available.
func (v *view) roll(here map[int]*v1.Pod, p *plan) {
	if v.set.Spec.UpdateStrategy.Type == apps.OnDeleteStatefulSetStrategyType {
		return
	}
	lowest := 0
	if r := v.set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		lowest = partition(r)
	}
	first := firstOrdinal(v.set)
	for i := first + replicas(v.set) - 1; i >= first+lowest; i-- {
		pod := here[i]
		if pod == nil {
			return
		}
		if pod.Labels[apps.StatefulSetRevisionLabel] != v.update.revision && !ending(pod) {
			p.remove = append(p.remove, pod)
			return
		}
		if !v.available(pod, p) {
			return
		}
	}
}

// statusOf counts the pods.
func statusOf(v view, collisions *int32) apps.StatefulSetStatus {
	s := apps.StatefulSetStatus{
		ObservedGeneration: v.set.Generation, CurrentRevision: v.current.revision, UpdateRevision: v.update.revision,
		CollisionCount: collisions, Conditions: v.set.Status.Conditions,
	}
	for _, p := range v.pods {
		if ordinalOf(v.set, p) < 0 {
			continue
		}
		s.Replicas++
		if p.Status.Phase == v1.PodRunning && pods.Ready(p) {
			s.ReadyReplicas++
			if ok, _ := pods.Available(p, time.Duration(v.set.Spec.MinReadySeconds)*time.Second, v.now); ok {
				s.AvailableReplicas++
			}
		}
		if ending(p) {
			continue
		}
		revision := p.Labels[apps.StatefulSetRevisionLabel]
		if revision == v.current.revision {
			s.CurrentReplicas++
		}
		if revision == v.update.revision {
			s.UpdatedReplicas++
		}
	}
	n := int32(replicas(v.set))
	rolling := v.set.Spec.UpdateStrategy.Type == apps.RollingUpdateStatefulSetStrategyType
	if rolling && s.UpdatedReplicas == n && s.ReadyReplicas == n && s.Replicas == n {
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision
	}
	return s
}
