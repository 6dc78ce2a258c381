package deployment

import (
	"math"
	"sort"

	apps "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func wanted(d *apps.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func size(s *apps.ReplicaSet) int32 {
	if s.Spec.Replicas == nil {
		return 1
	}
	return *s.Spec.Replicas
}

// limits resolves maxSurge (rounded up) and maxUnavailable (rounded down) to counts; at least one of them is positive,
// or no rollout could ever move.
func limits(d *apps.Deployment) (surge, unavailable int32) {
	r := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType || r == nil {
		return 0, 0
	}
	surge = scaled(r.MaxSurge, wanted(d), true)
	unavailable = scaled(r.MaxUnavailable, wanted(d), false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, wanted(d))
}

func scaled(v *intstr.IntOrString, total int32, up bool) int32 {
	if v == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, int(total), up)
	if err != nil {
		return 0 // validation keeps it out
	}
	return int32(n)
}

func maxSurge(d *apps.Deployment) int32 {
	surge, _ := limits(d)
	return surge
}

func maxUnavailable(d *apps.Deployment) int32 {
	_, unavailable := limits(d)
	return unavailable
}

func total(sets []*apps.ReplicaSet) (n int32) {
	for _, s := range sets {
		n += size(s)
	}
	return n
}

func available(sets []*apps.ReplicaSet) (n int32) {
	for _, s := range sets {
		n += s.Status.AvailableReplicas
	}
	return n
}

// active are the sets that should have pods.
func active(sets []*apps.ReplicaSet) (out []*apps.ReplicaSet) {
	for _, s := range sets {
		if size(s) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// growth is the size the current set may have now: as large as the surge allows, never more than is wanted. all includes
// the current set.
func growth(d *apps.Deployment, all []*apps.ReplicaSet, current *apps.ReplicaSet) int32 {
	if d.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType {
		return wanted(d)
	}
	room := wanted(d) + maxSurge(d) - total(all)
	if room <= 0 {
		return size(current)
	}
	return size(current) + min(room, wanted(d)-size(current))
}

// shrink says how far each old set goes down now, oldest first: what is not available anyway goes before what is, and
// at least wanted-maxUnavailable pods stay available.
func shrink(d *apps.Deployment, old []*apps.ReplicaSet, current *apps.ReplicaSet) map[*apps.ReplicaSet]int32 {
	all := append(append([]*apps.ReplicaSet(nil), old...), current)
	floor := wanted(d) - maxUnavailable(d)
	removable := total(all) - floor - (size(current) - current.Status.AvailableReplicas)
	if total(old) == 0 || removable <= 0 {
		return nil
	}
	target := map[*apps.ReplicaSet]int32{}
	for _, s := range old {
		target[s] = size(s)
		down := min(removable, size(s)-s.Status.AvailableReplicas)
		if down > 0 {
			target[s] -= down
			removable -= down
		}
	}
	spare := available(all) - floor
	for _, s := range old {
		if down := min(spare, target[s]); down > 0 {
			target[s] -= down
			spare -= down
		}
	}
	return target
}

// proportional spreads a change of the Deployment's size over all active sets in proportion to their size, so that scaling
// in the middle of a rollout does not speed it up. The rest from rounding goes to the largest set.
func proportional(d *apps.Deployment, sets []*apps.ReplicaSet) map[*apps.ReplicaSet]int32 {
	sets = active(sets)
	allowed := int32(0)
	if wanted(d) > 0 {
		allowed = wanted(d) + maxSurge(d)
	}
	toAdd := allowed - total(sets)
	sort.SliceStable(sets, func(i, j int) bool {
		if size(sets[i]) != size(sets[j]) {
			return size(sets[i]) > size(sets[j])
		}
		if toAdd > 0 {
			return older(sets[j], sets[i])
		}
		return older(sets[i], sets[j])
	})
	target := map[*apps.ReplicaSet]int32{}
	added := int32(0)
	for _, s := range sets {
		part := int32(0)
		if toAdd > 0 {
			part = min(fraction(d, s), toAdd-added)
		} else if toAdd < 0 {
			part = max(fraction(d, s), toAdd-added)
		}
		target[s] = size(s) + part
		added += part
	}
	if len(sets) > 0 {
		target[sets[0]] = max(0, target[sets[0]]+toAdd-added)
	}
	return target
}

// fraction is by how much a set would grow if it kept its share of the Deployment.
func fraction(d *apps.Deployment, s *apps.ReplicaSet) int32 {
	if wanted(d) == 0 {
		return -size(s)
	}
	before, ok := intAnnotation(s, annMax)
	if !ok || before == 0 {
		before = d.Status.Replicas
		if before == 0 {
			return 0
		}
	}
	share := float64(size(s)) * float64(wanted(d)+maxSurge(d)) / float64(before)
	return int32(math.Round(share)) - size(s)
}

// saturated reports whether the current set alone is the whole Deployment.
func saturated(d *apps.Deployment, s *apps.ReplicaSet) bool {
	if s == nil {
		return false
	}
	desired, ok := intAnnotation(s, annDesired)
	return ok && desired == wanted(d) && size(s) == wanted(d) && s.Status.AvailableReplicas == wanted(d)
}
