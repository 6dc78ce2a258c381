package limits

import (
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// The lifetime of a count, and the bound of cached resources, which is needed because a client may name any resource.
const (
	countAge  = 10 * time.Second
	maxCounts = 1024
)

// Counts caches the number of objects of each resource for a short time.
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

// NewCounts returns Counts that call scan, which reads the sizes of all objects without decoding them.
func NewCounts(scan func(resource string) storage.Stats) *Counts {
	return &Counts{scan: scan, now: time.Now, known: map[string]counted{}}
}

// Get is Config.Count. For an unknown resource or one without objects, a list has the lowest cost.
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
