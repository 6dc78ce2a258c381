package horizontalpodautoscaler

import (
	"errors"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// reading is what was read of one metric of an autoscaler: samples of pods, or values of something else, or why there is
// none.
type reading struct {
	pods   samples
	values []int64
	err    error
}

// proposal is what one metric asks for.
type proposal struct {
	replicas int32
	metric   string // for people
	status   autoscalingv2.MetricStatus
}

// refusal is why a metric asks for nothing.
type refusal struct {
	reason string // of the condition and the event
	err    error  // of the condition and the event
	whole  error  // of the autoscaler
}

func refuse(reason string, err error, format string, args ...any) *refusal {
	return &refusal{reason, err, fmt.Errorf(format+": %w", append(args, err)...)}
}

// propose is how many replicas a metric asks for.
func (in *input) propose(m autoscalingv2.MetricSpec, r reading) (proposal, *refusal) {
	switch m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		return in.ofResource(*m.Resource, r)
	case autoscalingv2.ContainerResourceMetricSourceType:
		return in.ofContainer(*m.ContainerResource, r)
	case autoscalingv2.PodsMetricSourceType:
		return in.ofPods(*m.Pods, r)
	case autoscalingv2.ObjectMetricSourceType:
		return in.ofObject(*m.Object, r)
	case autoscalingv2.ExternalMetricSourceType:
		return in.ofExternal(*m.External, r)
	}
	err := fmt.Errorf("unknown metric source type %q", m.Type)
	return proposal{}, &refusal{"InvalidMetricSourceType", err, err}
}

func (in *input) ofResource(m autoscalingv2.ResourceMetricSource, r reading) (proposal, *refusal) {
	replicas, metric, now, err := in.resource(m.Name, "", m.Target, r)
	if err != nil {
		return proposal{}, refuse("FailedGetResourceMetric", err, "failed to get %s resource metric value", m.Name)
	}
	return proposal{replicas, metric, autoscalingv2.MetricStatus{
		Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{Name: m.Name, Current: now},
	}}, nil
}

func (in *input) ofContainer(m autoscalingv2.ContainerResourceMetricSource, r reading) (proposal, *refusal) {
	replicas, metric, now, err := in.resource(m.Name, m.Container, m.Target, r)
	if err != nil {
		return proposal{}, refuse("FailedGetContainerResourceMetric", err, "failed to get %s container metric value", m.Container)
	}
	return proposal{replicas, metric, autoscalingv2.MetricStatus{
		Type:              autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: m.Name, Container: m.Container, Current: now},
	}}, nil
}

// resource is what the use of a resource asks for, by whole pods or, when one is named, by a container of each.
func (in *input) resource(name v1.ResourceName, container string, target autoscalingv2.MetricTarget, r reading) (replicas int32, metric string, now autoscalingv2.MetricValueStatus, err error) {
	what, newGauge := "utilization", func() (gauge, error) {
		all, err := requests(in.pods, container, name)
		if err != nil {
			return gauge{}, err
		}
		return utilizationGauge(all, *target.AverageUtilization), nil
	}
	switch {
	case target.AverageValue != nil:
		what, metric = "usage", fmt.Sprintf("%s resource", name)
		newGauge = func() (gauge, error) { return averageGauge(target.AverageValue.MilliValue()), nil }
	case target.AverageUtilization == nil:
		return 0, "", now, fmt.Errorf("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	case container != "":
		metric = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
	default:
		metric = fmt.Sprintf("%s resource utilization (percentage of request)", name)
	}
	var used usage
	if err = r.err; err == nil {
		replicas, used, err = in.perPod(r.pods, name, newGauge)
	} else {
		err = fmt.Errorf("unable to get metrics for resource %s: %w", name, err)
	}
	if err != nil {
		return 0, "", now, fmt.Errorf("failed to get %s %s: %w", name, what, err)
	}
	format := resource.DecimalSI
	if name == v1.ResourceMemory {
		format = resource.BinarySI
	}
	now.AverageValue = resource.NewMilliQuantity(used.average, format)
	if target.AverageValue == nil {
		now.AverageUtilization = &used.utilization
	}
	return replicas, metric, now, nil
}

func (in *input) ofPods(m autoscalingv2.PodsMetricSource, r reading) (proposal, *refusal) {
	replicas, used, err := int32(0), usage{}, r.err
	if err == nil {
		replicas, used, err = in.perPod(r.pods, "", func() (gauge, error) { return averageGauge(m.Target.AverageValue.MilliValue()), nil })
	} else {
		err = fmt.Errorf("unable to get metric %s: %w", m.Metric.Name, err)
	}
	if err != nil {
		return proposal{}, refuse("FailedGetPodsMetric", err, "failed to get pods metric value")
	}
	return proposal{replicas, "pods metric " + m.Metric.Name, autoscalingv2.MetricStatus{
		Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricStatus{Metric: m.Metric, Current: averageStatus(used.average)},
	}}, nil
}

func (in *input) ofObject(m autoscalingv2.ObjectMetricSource, r reading) (proposal, *refusal) {
	about := m.DescribedObject
	replicas, now, err := in.ofValue(m.Target, r)
	switch {
	case r.err != nil:
		err = fmt.Errorf("unable to get metric %s: %w on %s %s/%s", m.Metric.Name, r.err, about.Kind, in.hpa.Namespace, about.Name)
	case errors.Is(err, errNoTarget):
		err = fmt.Errorf("invalid object metric source: %w", err)
	}
	if err != nil {
		return proposal{}, refuse("FailedGetObjectMetric", err, "failed to get object metric value")
	}
	return proposal{replicas, fmt.Sprintf("%s metric %s", about.Kind, m.Metric.Name), autoscalingv2.MetricStatus{
		Type:   autoscalingv2.ObjectMetricSourceType,
		Object: &autoscalingv2.ObjectMetricStatus{DescribedObject: about, Metric: m.Metric, Current: now},
	}}, nil
}

func (in *input) ofExternal(m autoscalingv2.ExternalMetricSource, r reading) (proposal, *refusal) {
	replicas, now, err := in.ofValue(m.Target, r)
	switch {
	case r.err != nil:
		err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", in.hpa.Namespace, m.Metric.Name, m.Metric.Selector, r.err)
	case errors.Is(err, errNoTarget):
		err = fmt.Errorf("invalid external metric source: %w", err)
	}
	if err != nil {
		return proposal{}, refuse("FailedGetExternalMetric", err, "failed to get %s external metric value", m.Metric.Name)
	}
	return proposal{replicas, fmt.Sprintf("external metric %s(%+v)", m.Metric.Name, m.Metric.Selector), autoscalingv2.MetricStatus{
		Type:     autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricStatus{Metric: m.Metric, Current: now},
	}}, nil
}

var errNoTarget = errors.New("neither a value target nor an average value target was set")

// ofValue is what a metric asks for that is not of the pods.
func (in *input) ofValue(target autoscalingv2.MetricTarget, r reading) (replicas int32, now autoscalingv2.MetricValueStatus, err error) {
	if r.err != nil {
		return 0, now, r.err
	}
	value := total(r.values)
	switch {
	case target.AverageValue != nil:
		replicas, average := in.byAverage(value, target.AverageValue.MilliValue())
		return replicas, averageStatus(average), nil
	case target.Value != nil:
		replicas, err = in.byValue(value, target.Value.MilliValue())
		return replicas, autoscalingv2.MetricValueStatus{Value: resource.NewMilliQuantity(value, resource.DecimalSI)}, err
	}
	return 0, now, errNoTarget
}

func averageStatus(milli int64) autoscalingv2.MetricValueStatus {
	return autoscalingv2.MetricValueStatus{AverageValue: resource.NewMilliQuantity(milli, resource.DecimalSI)}
}
