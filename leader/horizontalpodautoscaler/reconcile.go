package horizontalpodautoscaler

import (
	"fmt"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// input is everything that a decision about one autoscaler depends on. Read-only.
type input struct {
	hpa      *autoscalingv2.HorizontalPodAutoscaler
	replicas int32 // that the target is to have
	running  int32 // that it has
	cfg      Config
	now      time.Time
	memory   memory

	// The fields below are read only if bounded says that metrics decide.
	selector string // of the target's scale
	pods     []*v1.Pod
	readings []reading // of each metric of the autoscaler
	fault    *fault    // why no metric can be read
}

// fault is the reason why the pods of a target cannot be measured.
type fault struct {
	event, reason   string // of the event and of the condition
	told, condition string // texts of both
}

// event is told to people.
type event struct{ kind, reason, message string }

// outcome is what is to be done.
type outcome struct {
	replicas int32 // equal to the input's: nothing is to be scaled
	reason   string
	status   autoscalingv2.HorizontalPodAutoscalerStatus
	events   []event
	memory   memory
	err      error // of metrics, when others were enough to decide
}

// bounded returns what the autoscaler's bounds say without any metric; ok is false when metrics decide.
func (in *input) bounded() (replicas int32, reason string, ok bool) {
	switch spec := in.hpa.Spec; {
	case in.replicas == 0:
		return 0, "", true
	case in.replicas > spec.MaxReplicas:
		return spec.MaxReplicas, "Current number of replicas above Spec.MaxReplicas", true
	case in.replicas < in.least():
		return in.least(), "Current number of replicas below Spec.MinReplicas", true
	}
	return 0, "", false
}

func (in *input) least() int32 {
	if m := in.hpa.Spec.MinReplicas; m != nil {
		return *m
	}
	return 1
}

// decide says how many replicas the target is to have, and what is said about it.
func (in *input) decide() outcome {
	out := outcome{replicas: in.replicas, memory: in.memory.begun(in.replicas, in.now)}
	out.status = autoscalingv2.HorizontalPodAutoscalerStatus{
		LastScaleTime: in.hpa.Status.LastScaleTime, CurrentReplicas: in.replicas, DesiredReplicas: in.hpa.Status.DesiredReplicas,
		Conditions: slices.Clone(in.hpa.Status.Conditions),
	}
	// Upstream sets it behind the feature HPAScaleToZero, which is off, and removes what is left of it.
	out.status.Conditions = slices.DeleteFunc(out.status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero
	})
	in.set(&out, autoscalingv2.AbleToScale, true, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	replicas, reason, ok := in.bounded()
	switch {
	case ok && in.replicas == 0:
		in.set(&out, autoscalingv2.ScalingActive, false, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
	case ok:
		out.replicas, out.reason = replicas, reason
	default:
		if !in.byMetrics(&out) {
			return out
		}
	}
	out.status.DesiredReplicas = out.replicas
	return out
}

// byMetrics decides by the metric that asks for most. It returns false when they do not allow a decision.
func (in *input) byMetrics(out *outcome) bool {
	if f := in.fault; f != nil {
		out.warn(f.event, f.told)
		in.set(out, autoscalingv2.ScalingActive, false, f.reason, f.condition)
		out.warn("FailedComputeMetricsReplicas", f.told)
		return false
	}
	best, failed, n := in.best(out)
	if failed != nil {
		out.err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", n, len(in.hpa.Spec.Metrics), failed.whole)
	}
	if n == len(in.hpa.Spec.Metrics) || n > 0 && best.replicas < in.replicas {
		// Without one of the metrics it cannot be said that fewer are enough.
		in.set(out, autoscalingv2.ScalingActive, false, failed.reason, "the HPA was unable to compute the replica count: "+failed.err.Error())
		out.warn("FailedComputeMetricsReplicas", out.err.Error())
		return false
	}
	in.set(out, autoscalingv2.ScalingActive, true, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+best.metric)
	switch {
	case best.replicas > in.replicas:
		out.reason = best.metric + " above target"
	case best.replicas < in.replicas:
		out.reason = "All metrics below target"
	}
	in.fit(out, best.replicas)
	return true
}

// best returns the proposal for most replicas, the first metric that makes none, and how many make none.
func (in *input) best(out *outcome) (best proposal, failed *refusal, n int) {
	out.status.CurrentMetrics = make([]autoscalingv2.MetricStatus, len(in.hpa.Spec.Metrics))
	for i, m := range in.hpa.Spec.Metrics {
		p, refused := in.propose(m, in.readings[i])
		if refused != nil {
			out.warn(refused.reason, refused.err.Error())
			if n++; failed == nil {
				failed = refused
			}
			continue
		}
		out.status.CurrentMetrics[i] = p.status
		if best.metric == "" || p.replicas > best.replicas {
			best = p
		}
	}
	return best, failed, n
}

// fit makes what the metrics ask for fit the stabilization windows, the policies and the bounds.
func (in *input) fit(out *outcome, desired int32) {
	b := bounds{
		current: in.replicas, least: in.least(), most: in.hpa.Spec.MaxReplicas, behavior: in.hpa.Spec.Behavior,
		downWindow: in.cfg.DownscaleStabilization, now: in.now,
	}
	stable := b.stabilize(desired, out.memory)
	up, down := b.windows()
	out.memory = out.memory.recommended(desired, in.now, max(up, down))
	in.set(out, autoscalingv2.AbleToScale, true, stable.reason, stable.message)
	limited := b.limit(stable.replicas, out.memory)
	in.set(out, autoscalingv2.ScalingLimited, limited.replicas != stable.replicas, limited.reason, limited.message)
	out.replicas = limited.replicas
}

// rescaled is the outcome after the target's scale was written.
func (in *input) rescaled(out outcome) outcome {
	now := metav1.NewTime(in.now)
	out.status.LastScaleTime = &now
	in.set(&out, autoscalingv2.AbleToScale, true, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", out.replicas))
	out.events = append(out.events, event{v1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", out.replicas, out.reason)})
	out.memory = out.memory.scaled(in.replicas, out.replicas, in.hpa.Spec.Behavior, in.now)
	return out
}

// stuck is the outcome after the target's scale could not be written.
func (in *input) stuck(out outcome, err error) outcome {
	out.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", out.replicas, out.reason, err))
	in.set(&out, autoscalingv2.AbleToScale, false, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
	out.status.DesiredReplicas = in.hpa.Status.DesiredReplicas
	return out
}

// unreadable is the outcome when the target has no scale that can be read.
func (in *input) unreadable(err error) outcome {
	out := outcome{status: *in.hpa.Status.DeepCopy(), memory: in.memory}
	out.warn("FailedGetScale", err.Error())
	in.set(&out, autoscalingv2.AbleToScale, false, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
	return out
}

func (o *outcome) warn(reason, message string) {
	o.events = append(o.events, event{v1.EventTypeWarning, reason, message})
}

// set replaces the condition of this kind, or appends it. LastTransitionTime changes only with the condition's status.
func (in *input) set(out *outcome, kind autoscalingv2.HorizontalPodAutoscalerConditionType, is bool, reason, message string) {
	status := v1.ConditionFalse
	if is {
		status = v1.ConditionTrue
	}
	list := &out.status.Conditions
	i := slices.IndexFunc(*list, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool { return c.Type == kind })
	if i < 0 {
		i = len(*list)
		*list = append(*list, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
	}
	c := &(*list)[i]
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(in.now)
	}
	c.Status, c.Reason, c.Message = status, reason, message
}
