package resourcemetrics

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/framer"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	// silence is how long a report counts when no other follows.
	silence = time.Minute
	// maxMessage bounds each half of a report, in bytes. A pod of two containers takes about 150.
	maxMessage = 1 << 20
)

var errTooLarge = fmt.Errorf("resourcemetrics: a report has more than %d bytes", maxMessage)

// use is processor time in nanocores and memory in bytes.
type use struct{ cpu, memory int64 }

// usage is what a node or pod used in a window of time.
type usage struct {
	at     time.Time
	window time.Duration
	// containers of a pod, sorted by name as the node sent them; of a node there is one, without a name.
	containers []containerUse
}

type containerUse struct {
	name string
	use
}

// report is what one node said last. Immutable.
type report struct {
	node *usage // nil: it has not measured itself twice yet
	pods map[types.NamespacedName]usage
}

// Reports are the newest reports of all nodes that are connected. Safe for concurrent use.
type Reports struct {
	mu    sync.RWMutex
	nodes map[string]*report
}

// NewReports returns an empty table.
func NewReports() *Reports { return &Reports{nodes: map[string]*report{}} }

// Receive reads the reports of a node, whose identity the caller has verified, until the connection ends or the node says
// nothing for a minute, closes it and returns why. From then on the node's figures are unknown.
func (r *Reports) Receive(node string, c net.Conn) error {
	defer c.Close()
	var last *report
	defer func() { r.drop(node, last) }()
	silent := time.AfterFunc(silence, func() { _ = c.Close() }) // which ends the read
	defer silent.Stop()
	frames := framer.NewLengthDelimitedFrameReader(c)
	for {
		next, err := read(frames)
		if err != nil {
			return err
		}
		silent.Reset(silence)
		last = next
		r.mu.Lock()
		r.nodes[node] = next
		r.mu.Unlock()
	}
}

// drop forgets a node's report, unless another connection has brought a newer one.
func (r *Reports) drop(node string, last *report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[node] == last {
		delete(r.nodes, node)
	}
}

// read returns the next report.
func read(frames io.Reader) (*report, error) {
	var node metricsv1beta1.NodeMetrics
	var pods metricsv1beta1.PodMetricsList
	for _, into := range []interface{ Unmarshal([]byte) error }{&node, &pods} {
		data, err := frame(frames)
		if err != nil {
			return nil, err
		}
		if err := into.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("resourcemetrics: decode a report: %w", err)
		}
	}
	return reportOf(&node, &pods), nil
}

// frame reads one message into memory that grows with what arrives and not with what the sender announces.
func frame(frames io.Reader) ([]byte, error) {
	data, used := make([]byte, 4<<10), 0
	for {
		n, err := frames.Read(data[used:])
		used += n
		switch {
		case err == nil:
			return data[:used], nil
		case !errors.Is(err, io.ErrShortBuffer):
			return nil, err
		case used >= maxMessage:
			return nil, errTooLarge
		}
		data = append(data, make([]byte, min(len(data), maxMessage-len(data)))...)
	}
}

func reportOf(node *metricsv1beta1.NodeMetrics, pods *metricsv1beta1.PodMetricsList) *report {
	out := &report{pods: make(map[types.NamespacedName]usage, len(pods.Items))}
	if !node.Timestamp.IsZero() {
		out.node = &usage{at: node.Timestamp.Time, window: node.Window.Duration, containers: []containerUse{{use: useOf(node.Usage)}}}
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		u := usage{at: p.Timestamp.Time, window: p.Window.Duration}
		for _, c := range p.Containers {
			u.containers = append(u.containers, containerUse{c.Name, useOf(c.Usage)})
		}
		out.pods[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = u
	}
	return out
}

func useOf(list v1.ResourceList) use {
	return use{cpu: list.Cpu().ScaledValue(-9), memory: list.Memory().Value()}
}

// node returns what a node uses.
func (r *Reports) node(name string) (usage, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if said := r.nodes[name]; said != nil && said.node != nil {
		return *said.node, true
	}
	return usage{}, false
}

// pod returns what a pod uses, by the node that it is bound to.
func (r *Reports) pod(node string, pod types.NamespacedName) (usage, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	said := r.nodes[node]
	if said == nil {
		return usage{}, false
	}
	u, ok := said.pods[pod]
	return u, ok
}
