package storage

import (
	"k8s.io/apimachinery/pkg/labels"
)

// LabelMatcher evaluates a label selector for one object after another, on labels given as bytes. It stores only the
// labels that the selector names. It is for one goroutine.
type LabelMatcher struct {
	selector labels.Selector
	keys     []string
	values   []string
	has      []bool
	known    map[string]string // label values seen, so that each string is allocated once
}

var _ labels.Labels = (*LabelMatcher)(nil)

// maxKnown bounds LabelMatcher.known.
const maxKnown = 1024

// NewLabelMatcher returns a LabelMatcher for selector, nil if it matches everything.
func NewLabelMatcher(selector labels.Selector) *LabelMatcher {
	if selector == nil || selector.Empty() {
		return nil
	}
	c := &LabelMatcher{selector: selector, known: map[string]string{}}
	requirements, _ := selector.Requirements() // labels.Nothing has none, and matches nothing
	for _, r := range requirements {
		c.keys = append(c.keys, r.Key())
	}
	c.values, c.has = make([]string, len(c.keys)), make([]bool, len(c.keys))
	return c
}

// Reset forgets the labels of the last object.
func (c *LabelMatcher) Reset() { clear(c.has) }

// Add adds a label of the current object.
func (c *LabelMatcher) Add(key, value []byte) {
	for i, k := range c.keys {
		if string(key) != k {
			continue
		}
		v, ok := c.known[string(value)]
		if !ok {
			v = string(value)
			if len(c.known) < maxKnown {
				c.known[v] = v
			}
		}
		c.has[i], c.values[i] = true, v
	}
}

// Match reports whether the current object is selected.
func (c *LabelMatcher) Match() bool { return c.selector.Matches(c) }

// Lookup implements labels.Labels.
func (c *LabelMatcher) Lookup(label string) (string, bool) {
	for i, k := range c.keys {
		if k == label && c.has[i] {
			return c.values[i], true
		}
	}
	return "", false
}

// Has implements labels.Labels.
func (c *LabelMatcher) Has(label string) bool { _, ok := c.Lookup(label); return ok }

// Get implements labels.Labels.
func (c *LabelMatcher) Get(label string) string { v, _ := c.Lookup(label); return v }
