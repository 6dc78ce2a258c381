package horizontalpodautoscaler

import (
	"errors"
	"maps"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
)

var (
	errNoPods  = errors.New("no pods returned by selector while calculating replica count")
	errUnready = errors.New("did not receive metrics for targeted pods (pods might be unready)")
	errUnknown = errors.New("no metrics returned matched known pods")
)

// tolerance is how far a ratio may be from 1 without a change.
type tolerance struct{ down, up float64 }

func (t tolerance) allows(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// tolerance is the autoscaler's, or the one of all.
func (in *input) tolerance() tolerance {
	t := tolerance{in.cfg.Tolerance, in.cfg.Tolerance}
	if b := in.hpa.Spec.Behavior; b != nil {
		t.down, t.up = toleranceOf(b.ScaleDown, t.down), toleranceOf(b.ScaleUp, t.up)
	}
	return t
}

func toleranceOf(rules *autoscalingv2.HPAScalingRules, fallback float64) float64 {
	if rules == nil || rules.Tolerance == nil {
		return fallback
	}
	return rules.Tolerance.AsApproximateFloat64()
}

// usage is a metric of all pods, compared with its target.
type usage struct {
	ratio       float64
	average     int64 // of a pod, in thousandths
	utilization int32 // of the requests, in percent; 0 where the target is no utilization
}

// gauge compares samples with a target, and knows what a pod without a sample is taken to use when scaling down: as much
// as the target allows at least, so that the others are not all there is.
type gauge struct {
	measure  func(samples) (usage, error)
	fallback func(pod string) int64
}

// averageGauge compares the average with a value in thousandths.
func averageGauge(target int64) gauge {
	return gauge{
		measure: func(s samples) (usage, error) {
			var total int64
			for _, one := range s {
				total += one.value
			}
			average := total / int64(len(s))
			return usage{ratio: float64(average) / float64(target), average: average}, nil
		},
		fallback: func(string) int64 { return target },
	}
}

// utilizationGauge compares what is used of all requests together with a percentage.
func utilizationGauge(requests map[string]int64, target int32) gauge {
	return gauge{
		measure: func(s samples) (usage, error) {
			var used, requested, n int64
			for name, one := range s {
				if request, ok := requests[name]; ok {
					used, requested, n = used+one.value, requested+request, n+1
				}
			}
			if requested == 0 {
				return usage{}, errUnknown
			}
			utilization := int32(used * 100 / requested)
			return usage{ratio: float64(utilization) / float64(target), average: used / n, utilization: utilization}, nil
		},
		fallback: func(pod string) int64 { return requests[pod] * int64(max(100, target)) / 100 },
	}
}

// perPod is how many replicas a metric of the pods themselves asks for. newGauge is asked once it is known which samples count.
func (in *input) perPod(all samples, resource v1.ResourceName, newGauge func() (gauge, error)) (replicas int32, now usage, err error) {
	if len(in.pods) == 0 {
		return 0, usage{}, errNoPods
	}
	g, counted := in.group(all, resource), maps.Clone(all)
	for _, names := range [][]string{g.ignored, g.unready} {
		for _, name := range names {
			delete(counted, name)
		}
	}
	if len(counted) == 0 {
		return 0, usage{}, errUnready
	}
	gauge, err := newGauge()
	if err != nil {
		return 0, usage{}, err
	}
	if now, err = gauge.measure(counted); err != nil {
		return 0, usage{}, err
	}
	if len(g.missing) == 0 && (len(g.unready) == 0 || now.ratio <= 1) {
		if in.tolerance().allows(now.ratio) {
			return in.replicas, now, nil
		}
		return clamp(math.Ceil(now.ratio * float64(g.ready))), now, nil
	}
	replicas, err = in.cautious(counted, g, gauge, now.ratio)
	return replicas, now, err
}

// cautious assumes values for pods without a usable sample that make the change smaller: idle when scaling up, busy when
// scaling down. If that would reverse the direction, there is no change.
func (in *input) cautious(counted samples, g groups, gauge gauge, ratio float64) (int32, error) {
	for _, name := range g.missing {
		switch {
		case ratio < 1:
			counted[name] = sample{value: gauge.fallback(name)}
		case ratio > 1:
			counted[name] = sample{}
		}
	}
	if ratio > 1 {
		for _, name := range g.unready {
			counted[name] = sample{}
		}
	}
	then, err := gauge.measure(counted)
	if err != nil {
		return 0, err
	}
	if in.tolerance().allows(then.ratio) || (ratio < 1) != (then.ratio < 1) {
		return in.replicas, nil
	}
	replicas := clamp(math.Ceil(then.ratio * float64(len(counted))))
	if (then.ratio < 1 && replicas > in.replicas) || (then.ratio > 1 && replicas < in.replicas) {
		return in.replicas, nil
	}
	return replicas, nil
}

// byValue is how many replicas a metric asks for that is compared as it is, whatever the number of pods.
func (in *input) byValue(value, target int64) (int32, error) {
	ratio := float64(value) / float64(target)
	if in.tolerance().allows(ratio) {
		return in.replicas, nil
	}
	if len(in.pods) == 0 {
		return 0, errNoPods
	}
	return clamp(math.Ceil(ratio * float64(in.readyPods()))), nil
}

// byAverage is how many replicas a metric asks for of which each pod should have its part, and the part that it has.
func (in *input) byAverage(value, target int64) (replicas int32, average int64) {
	replicas = in.running
	if !in.tolerance().allows(float64(value) / (float64(target) * float64(in.running))) {
		replicas = clamp(math.Ceil(float64(value) / float64(target)))
	}
	return replicas, ceilDiv(value, in.running)
}

// ceilDiv is n/d, rounded up; of nothing, n.
func ceilDiv(n int64, d int32) int64 {
	if d <= 0 {
		return n
	}
	q := math.Ceil(float64(n) / float64(d))
	if q >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(q)
}

// total adds values up and stops at the largest number there is.
func total(values []int64) (sum int64) {
	for _, v := range values {
		if v > 0 && sum > math.MaxInt64-v {
			return math.MaxInt64
		}
		sum += v
	}
	return sum
}
