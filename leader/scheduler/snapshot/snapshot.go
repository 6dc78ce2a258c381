package snapshot

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Snapshot is a state of the cluster that does not change while one pod is being placed.
type Snapshot struct {
	// Nodes are ordered so that zones take turns: a search that stops early has seen nodes of all zones.
	Nodes []*Node
	// Affine are the nodes with pods that have inter-pod terms, AntiAffine those with required anti-affinity.
	Affine, AntiAffine []*Node

	byName map[string]*Node
	images map[string]int

	indexes map[string]*Index
	uses    uint64
	// epoch counts how often the list of nodes was rebuilt. log holds the slots of the nodes that changed since then; its first entry has
	// position logStart.
	epoch    uint64
	log      []int
	logStart uint64
}

// New returns an empty snapshot.
func New() *Snapshot {
	return &Snapshot{byName: make(map[string]*Node)}
}

// Node returns the node of that name, or nil.
func (s *Snapshot) Node(name string) *Node { return s.byName[name] }

// ImageNodes returns the number of nodes that have the image.
func (s *Snapshot) ImageNodes(name string) int { return s.images[name] }

// Refresh updates s to the cache's present state. Its cost grows with the number of nodes that changed since the last call.
func (c *Cache) Refresh(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.imagesDirty {
		s.images = maps.Clone(c.images)
		c.imagesDirty = false
	}
	if len(c.dirty) == 0 {
		return
	}
	relist := c.reshaped
	for name := range c.dirty {
		relist = c.refreshNode(s, name) || relist
		if n, ok := s.byName[name]; ok && !c.reshaped {
			s.log = append(s.log, n.slot)
		}
	}
	clear(c.dirty)
	if c.reshaped {
		s.order()
		c.reshaped = false
	}
	s.trimLog()
	if relist {
		s.index()
	}
}

// Anew returns an empty snapshot, which the next Refresh fills completely.
func (c *Cache) Anew() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.nodes {
		c.dirty[name] = struct{}{}
	}
	c.reshaped, c.imagesDirty = true, true
	return New()
}

// refreshNode copies one node. It returns true if the snapshot's affinity lists must be rebuilt.
func (c *Cache) refreshNode(s *Snapshot, name string) bool {
	src, ok := c.nodes[name]
	if !ok || src.Object == nil {
		delete(s.byName, name)
		return true
	}
	dst, ok := s.byName[name]
	if !ok {
		dst = new(Node)
		s.byName[name] = dst
	}
	affine, anti := len(dst.Affine) > 0, len(dst.AntiAffine) > 0
	dst.copyFrom(src)
	return affine != (len(dst.Affine) > 0) || anti != (len(dst.AntiAffine) > 0)
}

// trimLog removes the older half of a log that is so long that an index had better recount every node.
func (s *Snapshot) trimLog() {
	if half := len(s.log) / 2; half > len(s.Nodes)+64 {
		s.log = append(s.log[:0], s.log[half:]...)
		s.logStart += uint64(half)
	}
}

// order lists the nodes, zones in turn, names in order within a zone.
func (s *Snapshot) order() {
	zones := make(map[string][]*Node)
	for _, n := range s.byName {
		z := zoneOf(n.Object)
		zones[z] = append(zones[z], n)
	}
	names := slices.Sorted(maps.Keys(zones))
	for _, z := range names {
		slices.SortFunc(zones[z], func(a, b *Node) int { return cmp.Compare(a.Name(), b.Name()) })
	}
	s.epoch++
	s.logStart += uint64(len(s.log))
	s.log = s.log[:0]
	s.Nodes = s.Nodes[:0]
	for i := 0; len(s.Nodes) < len(s.byName); i++ {
		for _, z := range names {
			if i < len(zones[z]) {
				zones[z][i].slot = len(s.Nodes)
				s.Nodes = append(s.Nodes, zones[z][i])
			}
		}
	}
}

func (s *Snapshot) index() {
	s.Affine, s.AntiAffine = s.Affine[:0], s.AntiAffine[:0]
	for _, n := range s.Nodes {
		if len(n.Affine) > 0 {
			s.Affine = append(s.Affine, n)
		}
		if len(n.AntiAffine) > 0 {
			s.AntiAffine = append(s.AntiAffine, n)
		}
	}
}

func zoneOf(n *v1.Node) string {
	return n.Labels[v1.LabelTopologyRegion] + "/" + n.Labels[v1.LabelTopologyZone]
}
