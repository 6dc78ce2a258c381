package resourcemetrics

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"
)

// columns are metrics-server's: `kubectl get podmetrics` prints them. (`kubectl top` reads the objects.)
var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
	{Name: "cpu", Type: "string"},
	{Name: "memory", Type: "string"},
	{Name: "Window", Type: "string", Format: "duration"},
}

// ConvertToTable implements rest.TableConvertor.
func (n *nodeMetrics) ConvertToTable(_ context.Context, o, options runtime.Object) (*metav1.Table, error) {
	table := newTable(options)
	row := func(m *metrics.NodeMetrics) { addRow(table, m, m.Usage, m.Window) }
	switch o := o.(type) {
	case *metrics.NodeMetrics:
		row(o)
	case *metrics.NodeMetricsList:
		for i := range o.Items {
			row(&o.Items[i])
		}
	}
	return table, nil
}

// ConvertToTable implements rest.TableConvertor.
func (p *podMetrics) ConvertToTable(_ context.Context, o, options runtime.Object) (*metav1.Table, error) {
	table := newTable(options)
	row := func(m *metrics.PodMetrics) { addRow(table, m, sum(m.Containers), m.Window) }
	switch o := o.(type) {
	case *metrics.PodMetrics:
		row(o)
	case *metrics.PodMetricsList:
		for i := range o.Items {
			row(&o.Items[i])
		}
	}
	return table, nil
}

func newTable(options runtime.Object) *metav1.Table {
	table := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = columns
	}
	return table
}

func addRow(table *metav1.Table, o runtime.Object, used v1.ResourceList, window metav1.Duration) {
	name := ""
	if m, ok := o.(metav1.Object); ok {
		name = m.GetName()
	}
	table.Rows = append(table.Rows, metav1.TableRow{
		Cells:  []any{name, used.Cpu().String(), used.Memory().String(), window.Duration.String()},
		Object: runtime.RawExtension{Object: o},
	})
}

// sum is what a pod's containers use together.
func sum(containers []metrics.ContainerMetrics) v1.ResourceList {
	out := v1.ResourceList{}
	for _, c := range containers {
		for name, q := range c.Usage {
			total := out[name]
			total.Add(q)
			out[name] = total
		}
	}
	return out
}
