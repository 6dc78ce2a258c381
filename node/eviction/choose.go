package eviction

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// immediateGrace is the grace period of pods that a hard threshold evicts, in seconds.
const immediateGrace = 1

// Victim is the pod to evict, and how.
type Victim struct {
	Pod         *v1.Pod
	Grace       int64 // seconds
	Message     string
	Annotations map[string]string // of the event
}

// Shortage is what a pod has to go for.
type Shortage struct {
	Threshold Threshold
	Seen      Observations
	// SeparateImages says that images and containers have a file system of their own.
	SeparateImages bool
	MaxPodGrace    int64 // seconds, for soft thresholds
}

// Choose returns the pod that has to go first; false when all candidates are critical. One pod goes at a time.
func Choose(s Shortage, candidates []Candidate) (Victim, bool) {
	for _, c := range ranked(candidates, s.Threshold.Signal, s.SeparateImages) {
		if Critical(c.Pod) {
			continue
		}
		v := Victim{Pod: c.Pod, Grace: immediateGrace}
		if s.Threshold.Soft {
			v.Grace = s.MaxPodGrace
			if own := c.Pod.Spec.TerminationGracePeriodSeconds; own != nil {
				v.Grace = min(v.Grace, *own)
			}
		}
		v.Message, v.Annotations = describe(s, c)
		return v, true
	}
	return Victim{}, false
}

// describe returns the message of the pod's status, and the annotations of its event.
func describe(s Shortage, c Candidate) (string, map[string]string) {
	starved := s.Threshold.Signal.resource()
	text := fmt.Sprintf("The node was low on resource: %s. ", starved)
	if seen, ok := s.Seen[s.Threshold.Signal]; ok {
		least, left := s.Threshold.Value.of(seen.Capacity), seen.available(s.Threshold.Signal)
		text += fmt.Sprintf("Threshold quantity: %s, available: %s. ", least.String(), left.String())
	}
	notes := map[string]string{"starved_resource": string(starved)}
	if c.Used == nil {
		return text, notes
	}
	if starved == v1.ResourceMemory && resourcehelper.IsPodLevelResourcesSet(c.Pod) && c.Used.Memory != nil {
		if asked, ok := c.Pod.Spec.Resources.Requests[starved]; ok {
			used := resource.NewQuantity(bytes(c.Used.Memory.WorkingSetBytes), resource.BinarySI)
			text += consumption("Pod "+c.Pod.Name, *used, asked, starved)
			notes["offending_pod"], notes["offending_pod_usage"] = c.Pod.Name, used.String()
		}
	}
	var names, uses []string
	for _, spec := range slices.Concat(c.Pod.Spec.Containers, c.Pod.Spec.InitContainers) {
		used, known := containerUsage(c.Used, spec.Name, starved)
		asked := spec.Resources.Requests[starved]
		if known && used.Cmp(asked) > 0 {
			text += consumption("Container "+spec.Name, used, asked, starved)
			names, uses = append(names, spec.Name), append(uses, used.String())
		}
	}
	notes["offending_containers"], notes["offending_containers_usage"] = strings.Join(names, ","), strings.Join(uses, ",")
	return text, notes
}

func consumption(of string, used, asked resource.Quantity, r v1.ResourceName) string {
	return fmt.Sprintf("%s was using %s, request is %s, has larger consumption of %v. ", of, used.String(), asked.String(), r)
}

// containerUsage returns what a container uses of a resource that containers can request; false when that is not known.
func containerUsage(used *statsv1.PodStats, name string, r v1.ResourceName) (resource.Quantity, bool) {
	for _, c := range used.Containers {
		switch {
		case c.Name != name:
		case r == v1.ResourceMemory && c.Memory != nil:
			return *resource.NewQuantity(bytes(c.Memory.WorkingSetBytes), resource.BinarySI), true
		case r == v1.ResourceEphemeralStorage && c.Rootfs != nil && c.Logs != nil:
			return *resource.NewQuantity(onDisk(c.Rootfs)+onDisk(c.Logs), resource.BinarySI), true
		}
	}
	return resource.Quantity{}, false
}
