package snapshot

import (
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ErrKnown is returned by Assume for a pod the cache already has on a node.
var ErrKnown = errors.New("pod is already on a node")

type placed struct {
	pod     *Pod
	node    string
	assumed bool
}

// Cache is the live state: nodes, the pods bound to them, and the pods assumed to be bound soon.
type Cache struct {
	mu    sync.Mutex
	nodes map[string]*Node
	pods  map[types.UID]placed
	// dirty are the nodes that changed since the last Refresh; reshaped: a node was added, removed, or changed its zone.
	dirty    map[string]struct{}
	reshaped bool
	// images counts the nodes that have an image.
	images       map[string]int
	imagesDirty  bool
	generation   uint64
	assumedCount int
}

// NewCache returns an empty cache.
func NewCache() *Cache {
	return &Cache{
		nodes:  make(map[string]*Node),
		pods:   make(map[types.UID]placed),
		dirty:  make(map[string]struct{}),
		images: make(map[string]int),
	}
}

// Assume puts a pod on a node before the API server has confirmed it. Every Assume ends with Forget, with Put when the informer shows the
// pod bound, or with Remove when the pod is gone.
func (c *Cache) Assume(p *Pod, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.pods[p.Object.UID]; ok {
		return fmt.Errorf("assume pod %s/%s on %s: %w %s", p.Object.Namespace, p.Object.Name, node, ErrKnown, at.node)
	}
	c.place(placed{pod: p.On(node), node: node, assumed: true})
	return nil
}

// Forget undoes Assume; a pod that was confirmed meanwhile stays.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.pods[uid]; ok && at.assumed {
		c.displace(uid, at)
	}
}

// Known reports whether the pod is on a node, and whether it is only assumed there.
func (c *Cache) Known(uid types.UID) (known, assumed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.pods[uid]
	return ok, at.assumed
}

// Put records a bound pod as the API server has it. It confirms an assumed pod, replaces an older version, or adds the pod.
func (c *Cache) Put(p *Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.pods[p.Object.UID]; ok {
		c.displace(p.Object.UID, at)
	}
	c.place(placed{pod: p, node: p.Object.Spec.NodeName})
}

// Remove removes a pod that is gone or has ended and returns it, nil if it was not on a node.
func (c *Cache) Remove(uid types.UID) *Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.pods[uid]
	if !ok {
		return nil
	}
	c.displace(uid, at)
	return at.pod
}

// SetNode adds or updates a node.
func (c *Cache) SetNode(object *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.node(object.Name)
	if n.Object == nil || zoneOf(n.Object) != zoneOf(object) {
		c.reshaped = true
	}
	c.countImages(n.Images, -1)
	n.set(object)
	c.countImages(n.Images, 1)
	c.touch(object.Name, n)
}

// RemoveNode removes a node. Pods on it stay until they are removed themselves.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[name]
	if !ok {
		return
	}
	c.countImages(n.Images, -1)
	n.Object, n.Images = nil, nil
	c.reshaped = true
	c.touch(name, n)
	if len(n.Pods) == 0 {
		delete(c.nodes, name)
	}
}

// NodeCount returns the number of nodes.
func (c *Cache) NodeCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 0
	for _, n := range c.nodes {
		if n.Object != nil {
			count++
		}
	}
	return count
}

// Assumed returns the number of pods that are assumed and not confirmed.
func (c *Cache) Assumed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.assumedCount
}

func (c *Cache) place(at placed) {
	n := c.node(at.node)
	n.Add(at.pod)
	c.pods[at.pod.Object.UID] = at
	if at.assumed {
		c.assumedCount++
	}
	c.touch(at.node, n)
}

func (c *Cache) displace(uid types.UID, at placed) {
	delete(c.pods, uid)
	if at.assumed {
		c.assumedCount--
	}
	n, ok := c.nodes[at.node]
	if !ok {
		return
	}
	n.Remove(uid)
	c.touch(at.node, n)
	if n.Object == nil && len(n.Pods) == 0 {
		delete(c.nodes, at.node)
	}
}

func (c *Cache) node(name string) *Node {
	n, ok := c.nodes[name]
	if !ok {
		n = new(Node)
		c.nodes[name] = n
	}
	return n
}

func (c *Cache) touch(name string, n *Node) {
	c.generation++
	n.generation = c.generation
	c.dirty[name] = struct{}{}
}

func (c *Cache) countImages(images map[string]int64, by int) {
	for name := range images {
		c.imagesDirty = true
		if c.images[name] += by; c.images[name] == 0 {
			delete(c.images, name)
		}
	}
}
