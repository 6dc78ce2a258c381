package snapshot

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const anyAddress = "0.0.0.0"

type protocolPort struct {
	protocol v1.Protocol
	port     int32
}

// Node is a node with the pods on it, bound or assumed, and the sums of their requests.
type Node struct {
	// Object is nil while there are pods on a node that the informer has not shown, or that is gone.
	Object *v1.Node
	Pods   []*Pod
	// Affine are the pods with any inter-pod term, AntiAffine those with a required anti-affinity term.
	Affine, AntiAffine []*Pod
	Allocatable        Resource
	Requested          Resource
	// ScoredMilliCPU and ScoredMemory are the sums of the pods' fields of these names.
	ScoredMilliCPU, ScoredMemory int64
	// Images are the sizes in bytes of the images on the node, by every name of the image. The map is never changed in place.
	Images map[string]int64

	ports      map[protocolPort][]string
	claims     map[string]int
	generation uint64 // of the last change; unique over all nodes
	slot       int    // place in the snapshot's list
}

// Name returns the node's name. Object must not be nil.
func (n *Node) Name() string { return n.Object.Name }

// UsesClaim reports whether a pod on the node uses the claim "namespace/name".
func (n *Node) UsesClaim(claim string) bool { return n.claims[claim] > 0 }

// Claims calls fn for each claim "namespace/name" in use on the node.
func (n *Node) Claims(fn func(claim string)) {
	for c := range n.claims {
		fn(c)
	}
}

// PortFree reports whether no pod on this node uses p.
func (n *Node) PortFree(p HostPort) bool {
	taken := n.ports[protocolPort{p.Protocol, p.Port}]
	if len(taken) == 0 {
		return true
	}
	return p.IP != anyAddress && !slices.Contains(taken, p.IP) && !slices.Contains(taken, anyAddress)
}

// Add puts a pod on the node.
func (n *Node) Add(p *Pod) {
	n.Pods = append(n.Pods, p)
	if p.HasAffinity() {
		n.Affine = append(n.Affine, p)
	}
	if len(p.RequiredAntiAffinity) > 0 {
		n.AntiAffine = append(n.AntiAffine, p)
	}
	n.account(p, 1)
	for _, h := range p.Ports {
		if n.ports == nil {
			n.ports = make(map[protocolPort][]string)
		}
		k := protocolPort{h.Protocol, h.Port}
		n.ports[k] = append(n.ports[k], h.IP)
	}
}

// Remove removes the pod with that UID from the node. It returns false if the pod was not there.
func (n *Node) Remove(uid types.UID) bool {
	i := slices.IndexFunc(n.Pods, func(p *Pod) bool { return p.Object.UID == uid })
	if i < 0 {
		return false
	}
	p := n.Pods[i]
	n.Pods = slices.Delete(n.Pods, i, i+1)
	same := func(q *Pod) bool { return q == p }
	n.Affine = slices.DeleteFunc(n.Affine, same)
	n.AntiAffine = slices.DeleteFunc(n.AntiAffine, same)
	n.account(p, -1)
	for _, h := range p.Ports {
		n.releasePort(h)
	}
	return true
}

func (n *Node) account(p *Pod, sign int64) {
	n.Requested.add(&p.Request, sign)
	n.ScoredMilliCPU += sign * p.ScoredMilliCPU
	n.ScoredMemory += sign * p.ScoredMemory
	for _, c := range p.Claims {
		if n.claims == nil {
			n.claims = make(map[string]int)
		}
		if n.claims[c] += int(sign); n.claims[c] == 0 {
			delete(n.claims, c)
		}
	}
}

func (n *Node) releasePort(h HostPort) {
	k := protocolPort{h.Protocol, h.Port}
	ips := n.ports[k]
	if i := slices.Index(ips, h.IP); i >= 0 {
		ips = slices.Delete(ips, i, i+1)
	}
	if len(ips) == 0 {
		delete(n.ports, k)
		return
	}
	n.ports[k] = ips
}

func (n *Node) set(object *v1.Node) {
	n.Object = object
	n.Allocatable = NewResource(object.Status.Allocatable)
	n.Images = make(map[string]int64, len(object.Status.Images))
	for _, image := range object.Status.Images {
		for _, name := range image.Names {
			n.Images[name] = image.SizeBytes
		}
	}
}

// Clone returns a copy. Adding and removing pods on it does not change the original.
func (n *Node) Clone() *Node {
	c := &Node{slot: n.slot}
	c.copyFrom(n)
	return c
}

// copyFrom makes n equal to src except for its slot: nodes of the cache, such as src may be, have no slot.
func (n *Node) copyFrom(src *Node) {
	pods, affine, anti, slot := n.Pods[:0], n.Affine[:0], n.AntiAffine[:0], n.slot
	*n = *src
	n.slot = slot
	n.Pods = append(pods, src.Pods...)
	n.Affine = append(affine, src.Affine...)
	n.AntiAffine = append(anti, src.AntiAffine...)
	n.Requested = src.Requested.clone()
	n.claims = maps.Clone(src.claims)
	n.ports = maps.Clone(src.ports)
	for k, ips := range n.ports {
		n.ports[k] = slices.Clone(ips)
	}
}

// ImageName returns the name under which a node reports an image that a pod names: a name without a tag gets ":latest".
func ImageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}

// Slot returns the node's index in Snapshot.Nodes; clones keep it.
func (n *Node) Slot() int { return n.slot }
