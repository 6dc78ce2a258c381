package dra

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// key names a claim.
type key struct{ namespace, name string }

func (k key) String() string { return k.namespace + "/" + k.name }

// claim is what is recorded of a claim that pods of this node use.
type claim struct {
	Namespace string              `json:"namespace"`
	Name      string              `json:"name"`
	UID       types.UID           `json:"uid"`
	Pods      []types.UID         `json:"pods"`
	Drivers   map[string][]device `json:"drivers"` // all that have devices of the claim
	Prepared  bool                `json:"prepared,omitempty"`
}

// device is one that a driver has prepared.
type device struct {
	Pool     string   `json:"pool"`
	Name     string   `json:"device"`
	Requests []string `json:"requests,omitempty"` // of the claim
	CDI      []string `json:"cdi,omitempty"`
}

func (c *claim) key() key { return key{c.Namespace, c.Name} }

// message is the claim as drivers are told of it.
func (c *claim) message() *drapb.Claim {
	return &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

// newClaim returns the record of a claim of the API. A claim that is not allocated is an error.
func newClaim(from *resourceapi.ResourceClaim) (*claim, error) {
	if from.Status.Allocation == nil {
		return nil, fmt.Errorf("ResourceClaim %s: not allocated", from.Name)
	}
	c := &claim{Namespace: from.Namespace, Name: from.Name, UID: from.UID, Drivers: map[string][]device{}}
	for i := range from.Status.Allocation.Devices.Results {
		c.Drivers[from.Status.Allocation.Devices.Results[i].Driver] = nil
	}
	return c, nil
}

// take adds the pod to the users of a recorded claim. A claim of that name and another UID is still in use by a pod that was deleted
// by force.
func (c *claim) take(from *resourceapi.ResourceClaim, pod types.UID) error {
	if c.UID != from.UID {
		return fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists (previous pod force-deleted?!)", from.Name, c.UID)
	}
	if !slices.Contains(c.Pods, pod) {
		c.Pods = append(c.Pods, pod)
	}
	return nil
}

// devicesOf returns the devices of a request; "" is all requests.
func (c *claim) devicesOf(request string) (out []driverDevice) {
	for _, driver := range slices.Sorted(maps.Keys(c.Drivers)) {
		for _, d := range c.Drivers[driver] {
			if request == "" || len(d.Requests) == 0 || slices.Contains(d.Requests, resourceclaim.BaseRequestRef(request)) || slices.Contains(d.Requests, request) {
				out = append(out, driverDevice{driver, d})
			}
		}
	}
	return out
}

type driverDevice struct {
	driver string
	device
}

// entries are the claims of a pod, with the one for its extended resources.
func entries(pod *v1.Pod) []v1.PodResourceClaim {
	out := pod.Spec.ResourceClaims
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		out = append(out[:len(out):len(out)], v1.PodResourceClaim{ResourceClaimName: &s.ResourceClaimName})
	}
	return out
}

// use is what a container uses of a claim. Title is what the container's status calls it.
type use struct {
	claim   key
	request string // "" is all
	title   string
}

// usesOf lists what a container uses of the pod's claims.
func usesOf(pod *v1.Pod, c *v1.Container) (uses []use, err error) {
	for _, r := range c.Resources.Claims {
		i := slices.IndexFunc(pod.Spec.ResourceClaims, func(p v1.PodResourceClaim) bool { return p.Name == r.Name })
		if i < 0 {
			continue
		}
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue
		}
		title := "claim:" + r.Name
		if r.Request != "" {
			title += "/" + r.Request
		}
		uses = append(uses, use{key{pod.Namespace, *name}, r.Request, title})
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			if q := c.Resources.Requests[v1.ResourceName(m.ResourceName)]; m.ContainerName == c.Name && !q.IsZero() {
				uses = append(uses, use{claim: key{pod.Namespace, s.ResourceClaimName}, request: m.RequestName})
			}
		}
	}
	return uses, nil
}
