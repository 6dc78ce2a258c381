package snapshot

// tallyLimit bounds how many tallies a snapshot remembers; past it all are forgotten.
const tallyLimit = 128

// Tally counts, node by node, the pods that satisfy a condition. A node is counted again only after it has changed, so
// that a hundred replicas with the same constraint do not count the whole cluster a hundred times.
type Tally struct {
	match   func(*Pod) bool
	entries []tallyEntry
}

type tallyEntry struct {
	generation uint64
	count      int
}

// Tally returns the tally of a condition. key must determine match wholly; with the empty key nothing is remembered.
func (s *Snapshot) Tally(key string, match func(*Pod) bool) *Tally {
	if key == "" {
		return &Tally{match: match}
	}
	if t, ok := s.tallies[key]; ok {
		return t
	}
	if s.tallies == nil || len(s.tallies) >= tallyLimit {
		s.tallies = make(map[string]*Tally)
	}
	t := &Tally{match: match}
	s.tallies[key] = t
	return t
}

// Count is the number of pods on n that satisfy the condition. n must be a node of the snapshot, not a clone.
func (t *Tally) Count(n *Node) int {
	if n.slot >= len(t.entries) {
		t.entries = append(t.entries, make([]tallyEntry, n.slot+1-len(t.entries))...)
	}
	e := &t.entries[n.slot]
	if e.generation == n.generation {
		return e.count
	}
	e.generation, e.count = n.generation, 0
	for _, p := range n.Pods {
		if t.match(p) {
			e.count++
		}
	}
	return e.count
}
