package limits

import (
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// How long a count is believed and how many resources are remembered; a client may name any.
const (
	countAge  = 10 * time.Second
	maxCounts = 1024
)

// Counts remembers for a moment how many objects there are of a resource.
type Counts struct {
	scan func(resource string) storage.Stats
	now  func() time.Time

	mu    sync.Mutex
	known map[string]counted
}

type counted struct {
	stats storage.Stats
	until time.Time
}

// NewCounts asks scan, which looks at every object's size and decodes none.
func NewCounts(scan func(resource string) storage.Stats) *Counts {
	return &Counts{scan: scan, now: time.Now, known: map[string]counted{}}
}

// Get is Config.Count. A resource without objects, or unknown, costs a list of it the least.
func (c *Counts) Get(resource string) (storage.Stats, error) {
	now := c.now()
	c.mu.Lock()
	k, ok := c.known[resource]
	c.mu.Unlock()
	if !ok || now.After(k.until) {
		k = counted{c.scan(resource), now.Add(countAge)}
		c.mu.Lock()
		if len(c.known) >= maxCounts {
			clear(c.known)
		}
		c.known[resource] = k
		c.mu.Unlock()
	}
	if k.stats.ObjectCount == 0 {
		return storage.Stats{}, request.ObjectCountNotFoundErr
	}
	return k.stats, nil
}
