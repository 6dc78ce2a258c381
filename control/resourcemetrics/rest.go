package resourcemetrics

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

func init() { install.Install(legacyscheme.Scheme) }

// Source reads Nodes or Pods; a registry of them is one.
type Source interface {
	rest.Getter
	rest.Lister
}

// Table is where endpoints are entered (kinds.Set is one).
type Table interface {
	Add(gv schema.GroupVersion, path string, storage rest.Storage)
}

// Install enters the group's two kinds.
func Install(table Table, reports *Reports, nodes, pods Source) {
	table.Add(metricsv1beta1.SchemeGroupVersion, "nodes", &nodeMetrics{endpoint{kind: "NodeMetrics", resource: "nodes"}, reports, nodes})
	table.Add(metricsv1beta1.SchemeGroupVersion, "pods", &podMetrics{endpoint{kind: "PodMetrics", resource: "pods", namespaced: true}, reports, pods})
}

// endpoint is what both kinds have in common.
type endpoint struct {
	kind, resource string
	namespaced     bool
}

// Destroy implements rest.Storage.
func (e endpoint) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (e endpoint) NamespaceScoped() bool { return e.namespaced }

// Kind implements rest.KindProvider.
func (e endpoint) Kind() string { return e.kind }

// GetSingularName implements rest.SingularNameProvider. metrics-server has none either: "node" and "pod" are the core
// group's.
func (e endpoint) GetSingularName() string { return "" }

func (e endpoint) notFound(name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: metrics.GroupName, Resource: e.resource}, name)
}

// nodeMetrics serves NodeMetrics.
type nodeMetrics struct {
	endpoint
	reports *Reports
	source  Source
}

// New implements rest.Storage.
func (n *nodeMetrics) New() runtime.Object { return &metrics.NodeMetrics{} }

// NewList implements rest.Lister.
func (n *nodeMetrics) NewList() runtime.Object { return &metrics.NodeMetricsList{} }

// Get implements rest.Getter.
func (n *nodeMetrics) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	found, err := n.source.Get(ctx, name, options)
	if err != nil {
		return nil, n.ofGroup(err, name)
	}
	m, ok := n.of(found.(*api.Node))
	if !ok {
		return nil, n.notFound(name)
	}
	return &m, nil
}

// List implements rest.Lister.
func (n *nodeMetrics) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	found, err := n.source.List(ctx, labelsOnly(options))
	if err != nil {
		return nil, err
	}
	list := &metrics.NodeMetricsList{}
	nodes := found.(*api.NodeList).Items
	for i := range nodes {
		if m, ok := n.of(&nodes[i]); ok && chosen(options, &m.ObjectMeta) {
			list.Items = append(list.Items, m)
		}
	}
	return list, nil
}

func (n *nodeMetrics) of(node *api.Node) (metrics.NodeMetrics, bool) {
	u, ok := n.reports.node(node.Name)
	if !ok {
		return metrics.NodeMetrics{}, false
	}
	return metrics.NodeMetrics{
		ObjectMeta: u.meta(&node.ObjectMeta), Timestamp: metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window},
		Usage: u.containers[0].list(),
	}, true
}

// podMetrics serves PodMetrics.
type podMetrics struct {
	endpoint
	reports *Reports
	source  Source
}

// New implements rest.Storage.
func (p *podMetrics) New() runtime.Object { return &metrics.PodMetrics{} }

// NewList implements rest.Lister.
func (p *podMetrics) NewList() runtime.Object { return &metrics.PodMetricsList{} }

// Get implements rest.Getter.
func (p *podMetrics) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	found, err := p.source.Get(ctx, name, options)
	if err != nil {
		return nil, p.ofGroup(err, name)
	}
	m, ok := p.of(found.(*api.Pod))
	if !ok {
		return nil, p.notFound(name)
	}
	return &m, nil
}

// List implements rest.Lister.
func (p *podMetrics) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	found, err := p.source.List(ctx, labelsOnly(options))
	if err != nil {
		return nil, err
	}
	list := &metrics.PodMetricsList{}
	pods := found.(*api.PodList).Items
	for i := range pods {
		if m, ok := p.of(&pods[i]); ok && chosen(options, &m.ObjectMeta) {
			list.Items = append(list.Items, m)
		}
	}
	return list, nil
}

// of returns what the node that the pod is bound to says of it.
func (p *podMetrics) of(pod *api.Pod) (metrics.PodMetrics, bool) {
	u, ok := p.reports.pod(pod.Spec.NodeName, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	if !ok {
		return metrics.PodMetrics{}, false
	}
	out := metrics.PodMetrics{ObjectMeta: u.meta(&pod.ObjectMeta), Timestamp: metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window}}
	for _, c := range u.containers {
		out.Containers = append(out.Containers, metrics.ContainerMetrics{Name: c.name, Usage: c.list()})
	}
	return out, true
}

// meta is, as metrics-server has it, made at the moment it is asked for.
func (u usage) meta(of *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name, Labels: of.Labels, CreationTimestamp: metav1.NewTime(time.Now())}
}

func (u use) list() v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewScaledQuantity(u.cpu, resource.Nano),
		v1.ResourceMemory: *resource.NewQuantity(u.memory, resource.BinarySI),
	}
}

// labelsOnly are the options for the list of Nodes or Pods: of what is measured now there is no older version, and no
// page. A client that asks for a page gets everything in the first, as the API allows.
func labelsOnly(options *metainternalversion.ListOptions) *metainternalversion.ListOptions {
	out := &metainternalversion.ListOptions{}
	if options != nil {
		out.LabelSelector = options.LabelSelector
	}
	return out
}

// chosen tells whether a field selector, which knows names and namespaces, selects an object.
func chosen(options *metainternalversion.ListOptions, o *metav1.ObjectMeta) bool {
	if options == nil || options.FieldSelector == nil {
		return true
	}
	return options.FieldSelector.Matches(fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace})
}

// ofGroup says of what is not found that it is not in this group.
func (e endpoint) ofGroup(err error, name string) error {
	if apierrors.IsNotFound(err) {
		return e.notFound(name)
	}
	return err
}
