package admission

import (
	"fmt"
	"slices"
	"sort"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	corehelper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

// nodeAffinity refuses a pod whose required node affinity or node selector does not match the Node.
func nodeAffinity(in Input) *Refusal {
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(in.Pod).Match(in.Node); err != nil || !ok {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	return nil
}

// freePorts refuses a pod that wants a host port which another pod has.
func freePorts(in Input) *Refusal {
	if portTaken(in.Pod, in.Others) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	return nil
}

// room refuses a pod whose requests are more than what the other pods leave of the Node's allocatable resources.
func room(in Input) *Refusal {
	room := in.Node.Status.Allocatable
	if int64(len(in.Others)) >= room.Pods().Value() {
		return outOf(v1.ResourcePods, 1, int64(len(in.Others)), room.Pods().Value())
	}
	used := v1.ResourceList{}
	for _, o := range in.Others {
		for name, q := range resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{}) {
			if claimed(o, name) {
				continue
			}
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	asked := resourcehelper.PodRequests(in.Pod, resourcehelper.PodResourcesOptions{})
	names := make([]string, 0, len(asked))
	for name := range asked {
		names = append(names, string(name))
	}
	sort.Strings(names)
	for _, n := range names {
		name := v1.ResourceName(n)
		have, known := room[name]
		q, u := asked[name], used[name]
		if in.AllocatedLater != nil && in.AllocatedLater(name) || claimed(in.Pod, name) {
			continue
		}
		if q.IsZero() || !known && (name == v1.ResourceEphemeralStorage || corehelper.IsExtendedResourceName(name)) {
			continue // extended resources unknown here are the cluster's
		}
		sum := q.DeepCopy()
		sum.Add(u)
		if sum.Cmp(have) > 0 {
			if name == v1.ResourceCPU {
				return outOf(name, q.MilliValue(), u.MilliValue(), have.MilliValue())
			}
			return outOf(name, q.Value(), u.Value(), have.Value())
		}
	}
	return nil
}

// claimed reports whether a ResourceClaim gives the pod what it requests of an extended resource.
func claimed(p *v1.Pod, name v1.ResourceName) bool {
	s := p.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m v1.ContainerExtendedResourceRequest) bool { return m.ResourceName == string(name) })
}

func outOf(name v1.ResourceName, asked, used, capacity int64) *Refusal {
	return &Refusal{"OutOf" + string(name), fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, asked, used, capacity)}
}

// hostPort is one port of the node that a pod takes.
type hostPort struct {
	protocol v1.Protocol
	ip       string
	port     int32
}

func hostPorts(pod *v1.Pod) []hostPort {
	var out []hostPort
	for _, cs := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range cs {
			if rp := cs[i].RestartPolicy; len(cs) > 0 && &cs[0] != &pod.Spec.Containers[0] && (rp == nil || *rp != v1.ContainerRestartPolicyAlways) {
				continue
			}
			for _, p := range cs[i].Ports {
				if p.HostPort == 0 {
					continue
				}
				h := hostPort{p.Protocol, p.HostIP, p.HostPort}
				if h.protocol == "" {
					h.protocol = v1.ProtocolTCP
				}
				if h.ip == "0.0.0.0" || h.ip == "::" {
					h.ip = ""
				}
				out = append(out, h)
			}
		}
	}
	return out
}

func portTaken(pod *v1.Pod, others []*v1.Pod) bool {
	mine := hostPorts(pod)
	if len(mine) == 0 {
		return false
	}
	for _, o := range others {
		for _, t := range hostPorts(o) {
			for _, m := range mine {
				if m.port == t.port && m.protocol == t.protocol && (m.ip == t.ip || m.ip == "" || t.ip == "") {
					return true
				}
			}
		}
	}
	return false
}
