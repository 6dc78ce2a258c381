package horizontalpodautoscaler

import (
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// recommendation is a number of replicas that the metrics asked for.
type recommendation struct {
	at       time.Time
	replicas int32
}

// change is by how many replicas the target was scaled up or down; never negative.
type change struct {
	at       time.Time
	replicas int32
}

// memory is what decisions about one autoscaler depend on beside the present. It is a value: its methods return a new one.
type memory struct {
	recommendations []recommendation // before stabilization
	ups, downs      []change
}

// begun is the memory of an autoscaler that is met for the first time: as if the replicas that it has had been asked for.
func (m memory) begun(replicas int32, now time.Time) memory {
	if m.recommendations == nil {
		m.recommendations = []recommendation{{now, replicas}}
	}
	return m
}

// recommended adds a recommendation, and forgets those that are older than keep.
func (m memory) recommended(replicas int32, now time.Time, keep time.Duration) memory {
	m.recommendations = append(slices.DeleteFunc(slices.Clone(m.recommendations), func(r recommendation) bool {
		return r.at.Before(now.Add(-keep))
	}), recommendation{now, replicas})
	return m
}

// scaled adds a change, and forgets those of its direction that no policy looks at any more.
func (m memory) scaled(from, to int32, behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, now time.Time) memory {
	if behavior == nil {
		return m // changes count for policies alone
	}
	list, rules := &m.downs, behavior.ScaleDown
	if to > from {
		list, rules = &m.ups, behavior.ScaleUp
	}
	var keep time.Duration
	for _, p := range rules.Policies {
		keep = max(keep, seconds(p.PeriodSeconds))
	}
	*list = append(slices.DeleteFunc(slices.Clone(*list), func(c change) bool { return c.at.Before(now.Add(-keep)) }), change{now, max(to-from, from-to)})
	return m
}

// within adds up the changes of a period that ends now.
func within(changes []change, period int32, now time.Time) (sum int32) {
	for _, c := range changes {
		if c.at.After(now.Add(-seconds(period))) {
			sum += c.replicas
		}
	}
	return sum
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }
