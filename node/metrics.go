package node

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/containermetrics"
	"github.com/balsahq/balsa/node/counters"
	"github.com/balsahq/balsa/node/podworker"
)

// showMetrics makes the agent's counters show what it runs. New calls it once.
func (a *Agent) showMetrics() {
	a.count.Show(a.countState)
	a.count.Register(&claimMetrics{views: a.views, busy: map[string]bool{}})
}

// Counters returns what counts the agent's work, for parts of the node beside it.
func (a *Agent) Counters() *counters.Counters { return a.count }

// countState counts pods and containers for a scrape.
func (a *Agent) countState() counters.State {
	s := counters.State{Node: a.cfg.NodeName, Containers: map[string]int{"running": 0, "exited": 0}}
	for _, v := range a.views() {
		if v.SandboxID != "" {
			s.Pods++
		}
		for _, c := range v.Containers {
			if c.Running {
				s.Containers["running"]++
			} else {
				s.Containers["exited"]++
			}
		}
	}
	return s
}

// ProbeMetrics returns the collector of the metrics of probes.
func (a *Agent) ProbeMetrics() prometheus.Collector { return a.probes }

// ContainerMetrics returns the collector of the metrics of containers.
func (a *Agent) ContainerMetrics() prometheus.Collector {
	return containermetrics.New(containermetrics.Config{CgroupRoot: a.cfg.CgroupRoot, Memory: a.memory, Pods: a.measured})
}

// measured returns the pods and the containers that run, as the collector of their metrics wants them.
func (a *Agent) measured() []containermetrics.Pod {
	var out []containermetrics.Pod
	for uid, v := range a.views() {
		if !v.Stopped {
			out = append(out, a.measuredPod(uid, v))
		}
	}
	return out
}

func (a *Agent) measuredPod(uid types.UID, v *podworker.View) containermetrics.Pod {
	p := containermetrics.Pod{
		Namespace: v.Pod.Namespace, Name: v.Pod.Name, Cgroup: a.cgroups.Path(uid, v1qos.GetPodQOS(v.Pod)),
		SandboxID: v.SandboxID, HostNetwork: v.Pod.Spec.HostNetwork,
	}
	s := &v.Pod.Status
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			if c := &list[i]; c.State.Running != nil {
				_, id, _ := strings.Cut(c.ContainerID, "://")
				p.Containers = append(p.Containers, containermetrics.Container{Name: c.Name, ID: id, Image: c.Image, Started: c.State.Running.StartedAt.Time})
			}
		}
	}
	return p
}

// measuredCgroups notes how long changes of pods' control groups take.
type measuredCgroups struct {
	cgroups
	count *counters.Counters
}

// Apply implements podworker.Cgroups.
func (m measuredCgroups) Apply(uid types.UID, qos v1.PodQOSClass, l cgroup.Limits) (string, error) {
	defer m.count.CgroupChanged("update", time.Now())
	return m.cgroups.Apply(uid, qos, l)
}

// Remove implements podworker.Cgroups.
func (m measuredCgroups) Remove(uid types.UID) error {
	defer m.count.CgroupChanged("destroy", time.Now())
	return m.cgroups.Remove(uid)
}
