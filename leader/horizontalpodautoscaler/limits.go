package horizontalpodautoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// verdict is a number of replicas with the reason why it is not what was asked for.
type verdict struct {
	replicas        int32
	reason, message string
}

// bounds are what a recommendation is fitted into.
type bounds struct {
	current, least, most int32
	behavior             *autoscalingv2.HorizontalPodAutoscalerBehavior // nil: the rules that were before there were behaviors
	downWindow           time.Duration                                  // of those that name none
	now                  time.Time
}

// windows are the stabilization windows.
func (b bounds) windows() (up, down time.Duration) {
	if b.behavior == nil {
		return 0, b.downWindow
	}
	down = b.downWindow
	if s := b.behavior.ScaleDown.StabilizationWindowSeconds; s != nil {
		down = seconds(*s)
	}
	if s := b.behavior.ScaleUp.StabilizationWindowSeconds; s != nil {
		up = seconds(*s)
	}
	return up, down
}

// stabilize chooses among a recommendation and those of the stabilization windows before it: the highest of the window for
// scaling down, the lowest of the one for scaling up.
func (b bounds) stabilize(desired int32, m memory) verdict {
	up, down := b.windows()
	lowest, highest := desired, desired
	for _, r := range m.recommendations {
		if r.at.After(b.now.Add(-up)) {
			lowest = min(lowest, r.replicas)
		}
		if r.at.After(b.now.Add(-down)) {
			highest = max(highest, r.replicas)
		}
	}
	out := verdict{replicas: highest}
	if b.behavior != nil {
		out.replicas = min(max(b.current, lowest), highest)
	}
	switch {
	case out.replicas == desired:
		out.reason, out.message = "ReadyForNewScale", "recommended size matches current size"
	case b.behavior != nil && desired >= b.current:
		out.reason, out.message = "ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation"
	default:
		out.reason, out.message = "ScaleDownStabilized", "recent recommendations were higher than current one, applying the highest recent recommendation"
	}
	return out
}

// limit keeps a number of replicas between the least and the most, and its change within the rates allowed.
func (b bounds) limit(desired int32, m memory) verdict {
	fast, slow := b.rates(desired, m)
	switch {
	case desired > min(fast, b.most) && fast < b.most:
		return verdict{fast, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
	case desired > b.most:
		return verdict{b.most, "TooManyReplicas", "the desired replica count is more than the maximum replica count"}
	case desired < max(slow, b.least) && slow > b.least:
		return verdict{slow, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
	case desired < b.least:
		return verdict{b.least, "TooFewReplicas", "the desired replica count is less than the minimum replica count"}
	}
	return verdict{desired, "DesiredWithinRange", "the desired count is within the acceptable range"}
}

// rates are how many replicas there may be at most and must be at least, for the pace of a change towards desired.
func (b bounds) rates(desired int32, m memory) (fast, slow int32) {
	fast, slow = math.MaxInt32, math.MinInt32
	switch {
	case b.behavior == nil:
		// Twice as many, and four at least, whatever the metrics say: a bogus one must not start thousands.
		fast = clamp(max(2*float64(b.current), 4))
	case desired > b.current:
		fast = max(b.upLimit(m), b.current)
	case desired < b.current:
		slow = min(b.downLimit(m), b.current)
	}
	return fast, slow
}

// upLimit is how many replicas the policies for scaling up allow now.
func (b bounds) upLimit(m memory) int32 {
	return b.policies(m, b.behavior.ScaleUp, slices.Max, func(start int32, p autoscalingv2.HPAScalingPolicy) int32 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return clamp(float64(start) + float64(p.Value))
		}
		return clamp(math.Ceil(float64(start) * (1 + float64(p.Value)/100))) // rounded up: otherwise one replica would stay one
	})
}

// downLimit is how many replicas the policies for scaling down leave now.
func (b bounds) downLimit(m memory) int32 {
	return b.policies(m, b.behavior.ScaleDown, slices.Min, func(start int32, p autoscalingv2.HPAScalingPolicy) int32 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return clamp(float64(start) - float64(p.Value))
		}
		return clamp(math.Trunc(float64(start) * (1 - float64(p.Value)/100)))
	})
}

// policies asks each policy for its limit, from the replicas that there were when its period began, and chooses one: by
// most, which returns the limit that allows the largest change, or the opposite where the rules want the smallest.
func (b bounds) policies(m memory, rules *autoscalingv2.HPAScalingRules, most func([]int32) int32, allows func(start int32, p autoscalingv2.HPAScalingPolicy) int32) int32 {
	selected := autoscalingv2.MaxChangePolicySelect
	if rules.SelectPolicy != nil {
		selected = *rules.SelectPolicy
	}
	if selected == autoscalingv2.DisabledPolicySelect || len(rules.Policies) == 0 {
		return b.current
	}
	var limits, opposite []int32
	for _, p := range rules.Policies {
		start := b.current - within(m.ups, p.PeriodSeconds, b.now) + within(m.downs, p.PeriodSeconds, b.now)
		limit := allows(start, p)
		limits, opposite = append(limits, limit), append(opposite, -limit)
	}
	if selected == autoscalingv2.MinChangePolicySelect {
		return -most(opposite)
	}
	return most(limits)
}

// clamp is f as a number of replicas.
func clamp(f float64) int32 {
	return int32(min(max(f, math.MinInt32), math.MaxInt32))
}
