package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	resourceclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	customclient "k8s.io/metrics/pkg/client/custom_metrics"
	externalclient "k8s.io/metrics/pkg/client/external_metrics"
)

// defaultWindow is the window of custom metrics that name none; upstream has the same value.
const defaultWindow = time.Minute

// source reads metrics from the APIs metrics.k8s.io, custom.metrics.k8s.io and external.metrics.k8s.io.
type source struct {
	resources resourceclient.PodMetricsesGetter
	versions  customclient.AvailableAPIsGetter
	custom    customclient.CustomMetricsClient
	external  externalclient.ExternalMetricsClient
}

func newSource(c *rest.Config, mapper meta.RESTMapper) (*source, error) {
	resources, err := resourceclient.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of metrics.k8s.io: %w", err)
	}
	known, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of custom.metrics.k8s.io: %w", err)
	}
	external, err := externalclient.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of external.metrics.k8s.io: %w", err)
	}
	versions := customclient.NewAvailableAPIsGetter(known)
	return &source{resources: resources, versions: versions, custom: customclient.NewForConfig(c, mapper, versions), external: external}, nil
}

// read reads one metric of an autoscaler, for the pods of a selector.
func (s *source) read(ctx context.Context, namespace string, selector labels.Selector, m autoscalingv2.MetricSpec) (r reading) {
	switch m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		r.pods, r.err = s.resource(ctx, namespace, selector, func(p metricsv1beta1.PodMetrics) (int64, bool) { return ofPod(p, m.Resource.Name) })
	case autoscalingv2.ContainerResourceMetricSourceType:
		r.pods, r.err = s.resource(ctx, namespace, selector, func(p metricsv1beta1.PodMetrics) (int64, bool) {
			return ofContainer(p, m.ContainerResource.Container, m.ContainerResource.Name)
		})
	case autoscalingv2.PodsMetricSourceType:
		r.pods, r.err = s.pods(namespace, selector, m.Pods.Metric)
	case autoscalingv2.ObjectMetricSourceType:
		r.values, r.err = s.object(namespace, m.Object.DescribedObject, m.Object.Metric)
	case autoscalingv2.ExternalMetricSourceType:
		r.values, r.err = s.outside(namespace, m.External.Metric)
	}
	return r
}

// resource lists what pods use; value finds the number in what is said of one, if it is there.
func (s *source) resource(ctx context.Context, namespace string, selector labels.Selector, value func(metricsv1beta1.PodMetrics) (int64, bool)) (samples, error) {
	list, err := s.resources.PodMetricses(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	out := make(samples, len(list.Items))
	for _, p := range list.Items {
		if v, ok := value(p); ok {
			out[p.Name] = sample{value: v, at: p.Timestamp.Time, window: p.Window.Duration}
		}
	}
	return out, nil
}

// ofPod adds the containers up; ok is false when one of them is not known.
func ofPod(p metricsv1beta1.PodMetrics, name v1.ResourceName) (sum int64, ok bool) {
	for _, c := range p.Containers {
		q, known := c.Usage[name]
		if !known {
			return 0, false
		}
		sum += q.MilliValue()
	}
	return sum, len(p.Containers) > 0
}

func ofContainer(p metricsv1beta1.PodMetrics, container string, name v1.ResourceName) (int64, bool) {
	for _, c := range p.Containers {
		if c.Name == container {
			q, known := c.Usage[name]
			return q.MilliValue(), known
		}
	}
	return 0, false
}

// pods reads a custom metric of the pods of a selector.
func (s *source) pods(namespace string, selector labels.Selector, m autoscalingv2.MetricIdentifier) (samples, error) {
	which, err := metav1.LabelSelectorAsSelector(m.Selector)
	if err != nil {
		return nil, err
	}
	list, err := s.custom.NamespacedMetrics(namespace).GetForObjects(schema.GroupKind{Kind: "Pod"}, selector, m.Name, which)
	if err != nil {
		return nil, s.forget(err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	out := make(samples, len(list.Items))
	for _, v := range list.Items {
		window := defaultWindow
		if v.WindowSeconds != nil {
			window = time.Duration(*v.WindowSeconds) * time.Second
		}
		out[v.DescribedObject.Name] = sample{value: v.Value.MilliValue(), at: v.Timestamp.Time, window: window}
	}
	return out, nil
}

// object reads a custom metric of one object of the namespace, or of the namespace itself.
func (s *source) object(namespace string, about autoscalingv2.CrossVersionObjectReference, m autoscalingv2.MetricIdentifier) ([]int64, error) {
	which, err := metav1.LabelSelectorAsSelector(m.Selector)
	if err != nil {
		return nil, err
	}
	kind := schema.FromAPIVersionAndKind(about.APIVersion, about.Kind).GroupKind()
	from, name := s.custom.NamespacedMetrics(namespace), about.Name
	if kind == (schema.GroupKind{Kind: "Namespace"}) {
		from, name = s.custom.RootScopedMetrics(), namespace // its own: an autoscaler sees no other
	}
	v, err := from.GetForObject(kind, name, m.Name, which)
	if err != nil {
		return nil, s.forget(err)
	}
	return []int64{v.Value.MilliValue()}, nil
}

// forget has the versions of custom.metrics.k8s.io looked up again: an adapter may have come, gone or changed.
func (s *source) forget(err error) error {
	s.versions.Invalidate()
	return fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
}

// outside reads an external metric.
func (s *source) outside(namespace string, m autoscalingv2.MetricIdentifier) (out []int64, err error) {
	which, err := metav1.LabelSelectorAsSelector(m.Selector)
	if err != nil {
		return nil, err
	}
	list, err := s.external.NamespacedMetrics(namespace).List(m.Name, which)
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from external metrics API")
	}
	for _, v := range list.Items {
		out = append(out, v.Value.MilliValue())
	}
	return out, nil
}
