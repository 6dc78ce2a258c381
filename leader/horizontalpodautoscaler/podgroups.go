package horizontalpodautoscaler

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcehelpers "k8s.io/component-helpers/resource"

	"github.com/balsahq/balsa/leader/pods"
)

// groups are a target's pods, by what is known of their metric.
type groups struct {
	ready            int      // that count
	unready, missing []string // names; missing have no metric
	ignored          []string // that end or have failed
}

// group sorts pods by upstream's rules. Only processor time depends on readiness: a pod that starts uses much of it, and
// that says nothing about its load.
func (in *input) group(metric samples, resource v1.ResourceName) (g groups) {
	for _, p := range in.pods {
		sample, known := metric[p.Name]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == v1.PodFailed:
			g.ignored = append(g.ignored, p.Name)
		case p.Status.Phase == v1.PodPending:
			g.unready = append(g.unready, p.Name)
		case !known:
			g.missing = append(g.missing, p.Name)
		case resource == v1.ResourceCPU && in.initializing(p, sample):
			g.unready = append(g.unready, p.Name)
		default:
			g.ready++
		}
	}
	return g
}

// initializing tells whether a pod's processor time does not count yet.
func (in *input) initializing(p *v1.Pod, s sample) bool {
	ready := pods.Condition(p, v1.PodReady)
	if ready == nil || p.Status.StartTime == nil {
		return true
	}
	unready, since, start := ready.Status == v1.ConditionFalse, ready.LastTransitionTime.Time, p.Status.StartTime.Time
	if start.Add(in.cfg.CPUInitializationPeriod).After(in.now) {
		return unready || s.at.Before(since.Add(s.window)) // not a whole window since it became ready
	}
	return unready && start.Add(in.cfg.InitialReadinessDelay).After(since) // it never was ready
}

// readyPods counts the pods that run and are ready.
func (in *input) readyPods() (n int) {
	for _, p := range in.pods {
		if p.Status.Phase == v1.PodRunning && pods.Ready(p) {
			n++
		}
	}
	return n
}

// requests are what each pod requests of a resource, in thousandths: the whole pod, or one container of it when a name is
// given.
func requests(list []*v1.Pod, container string, resource v1.ResourceName) (map[string]int64, error) {
	out := make(map[string]int64, len(list))
	for _, p := range list {
		var err error
		if container == "" && resourcehelpers.IsPodLevelRequestsSet(p) {
			out[p.Name], err = podRequest(p, resource)
		} else {
			out[p.Name], err = containerRequests(p, container, resource)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func podRequest(p *v1.Pod, resource v1.ResourceName) (int64, error) {
	q, ok := resourcehelpers.PodRequests(p, resourcehelpers.PodResourcesOptions{})[resource]
	if !ok {
		return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", resource, p.Name)
	}
	return q.MilliValue(), nil
}

// containerRequests adds up those of the containers that run as long as the pod does.
func containerRequests(p *v1.Pod, container string, resource v1.ResourceName) (sum int64, err error) {
	containers := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	found := container == ""
	for _, c := range containers {
		if container != "" && c.Name != container {
			continue
		}
		q, ok := c.Resources.Requests[resource]
		if !ok {
			return 0, fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, p.Name)
		}
		sum, found = sum+q.MilliValue(), true
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
	}
	return sum, nil
}

// sample is the value of a metric for one pod, in thousandths, measured over a window that ended at a time.
type sample struct {
	value  int64
	at     time.Time
	window time.Duration
}

// samples are those of pods, by name.
type samples map[string]sample
