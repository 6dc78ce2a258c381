package devices

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

// CanBeClass reports whether a DeviceClass may stand for the resource.
func CanBeClass(name v1.ResourceName) bool {
	return helper.IsExtendedResourceName(name) || strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix)
}

// Backed returns those of the resources that DeviceClasses stand for, with the class's name.
func (b *Book) Backed(requests map[v1.ResourceName]int64) map[v1.ResourceName]string {
	var backed map[v1.ResourceName]string
	for name, amount := range requests {
		if amount == 0 || !CanBeClass(name) {
			continue
		}
		if class := b.ClassOf(name); class != nil {
			if backed == nil {
				backed = map[v1.ResourceName]string{}
			}
			backed[name] = class.Name
		}
	}
	return backed
}

// NewExtendedClaim returns a claim without requests for a pod's extended resources. It exists in memory under a UID of its own until
// the pod has a node: which resources become requests depends on the node.
func NewExtendedClaim(pod *v1.Pod) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, GenerateName: pod.Name + "-extended-resources-", UID: types.UID("extended resources of " + string(pod.UID)),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}},
		Annotations:     map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
	}}
}

// Requests turns the containers' requests for extended resources into requests for devices, and says which container has which. wanted
// has the class for each resource. Names are upstream's: container-<index>-request-<index of the resource among the container's>.
//
// Containers that run side by side need devices of their own. Init containers run before, so they use the devices of the containers
// after them; what they need beyond that is requested once, for the one that needs most.
func Requests(pod *v1.Pod, wanted map[v1.ResourceName]string) ([]resourceapi.DeviceRequest, []v1.ContainerExtendedResourceRequest) {
	var requests []resourceapi.DeviceRequest
	var mappings []v1.ContainerExtendedResourceRequest
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		r := resourceRequests{name: name, class: wanted[name], containers: all, inits: len(pod.Spec.InitContainers)}
		r.longLived()
		r.shortLived()
		requests = append(requests, r.requests...)
		mappings = append(mappings, r.mappings...)
	}
	slices.SortFunc(requests, func(a, b resourceapi.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	return requests, mappings
}

// resourceRequests gathers the requests for one resource.
type resourceRequests struct {
	name       v1.ResourceName
	class      string
	containers []v1.Container // init containers first
	inits      int

	own      []resourceapi.DeviceRequest // by container; an empty name means none
	requests []resourceapi.DeviceRequest
	mappings []v1.ContainerExtendedResourceRequest
}

// lives reports whether the container runs beside those that come after it.
func (r *resourceRequests) lives(i int) bool {
	policy := r.containers[i].RestartPolicy
	return i >= r.inits || policy != nil && *policy == v1.ContainerRestartPolicyAlways
}

func (r *resourceRequests) longLived() {
	r.own = make([]resourceapi.DeviceRequest, len(r.containers))
	for i := range r.containers {
		if n := r.amount(i); n > 0 && r.lives(i) {
			r.own[i] = r.request(i, n)
			r.requests = append(r.requests, r.own[i])
			r.mapTo(i, r.own[i].Name)
		}
	}
}

func (r *resourceRequests) shortLived() {
	var most *resourceapi.DeviceRequest
	var needy []int
	for i := range r.containers {
		left := r.amount(i)
		if left == 0 || r.lives(i) {
			continue
		}
		for j := i; j < len(r.own) && left > 0; j++ {
			if r.own[j].Name != "" {
				left -= r.own[j].Exactly.Count
				r.mapTo(i, r.own[j].Name)
			}
		}
		if left <= 0 {
			continue
		}
		needy = append(needy, i)
		if most == nil || most.Exactly.Count < left {
			req := r.request(i, left)
			most = &req
		}
	}
	if most == nil {
		return
	}
	r.requests = append(r.requests, *most)
	for _, i := range needy {
		r.mapTo(i, most.Name)
	}
}

// amount is how many devices the container asks for.
func (r *resourceRequests) amount(i int) int64 {
	q := r.containers[i].Resources.Requests[r.name]
	n, _ := q.AsInt64()
	return n
}

func (r *resourceRequests) request(i int, count int64) resourceapi.DeviceRequest {
	place := slices.Index(slices.Sorted(maps.Keys(r.containers[i].Resources.Requests)), r.name)
	return resourceapi.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, place),
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: r.class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		},
	}
}

func (r *resourceRequests) mapTo(i int, request string) {
	r.mappings = append(r.mappings, v1.ContainerExtendedResourceRequest{
		ContainerName: r.containers[i].Name, ResourceName: string(r.name), RequestName: request,
	})
}
