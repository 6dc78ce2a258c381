package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// cacheEntries and cacheBytes bound the entries kept in memory after they were written.
const (
	cacheEntries = 2048
	cacheBytes   = 16 << 20
)

// entryCache holds the newest entries of the log in a ring, so that a leader does not read them back for each follower.
type entryCache struct {
	mu    sync.RWMutex
	ring  [cacheEntries]*raft.Log
	first uint64 // first > last when the cache is empty
	last  uint64
	bytes int
}

// add keeps entries that follow one another.
func (c *entryCache) add(logs []*raft.Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if l.Index != c.last+1 || c.empty() {
			c.clear()
			c.first = l.Index
		}
		at := &c.ring[l.Index%cacheEntries]
		if *at != nil {
			c.first++
			c.bytes -= len((*at).Data)
		}
		*at, c.last = l, l.Index
		c.bytes += len(l.Data)
	}
	for c.bytes > cacheBytes && !c.empty() {
		c.forget(c.first)
		c.first++
	}
}

func (c *entryCache) empty() bool { return c.last == 0 || c.first > c.last }

func (c *entryCache) forget(index uint64) {
	at := &c.ring[index%cacheEntries]
	c.bytes -= len((*at).Data)
	*at = nil
}

func (c *entryCache) clear() {
	clear(c.ring[:])
	c.first, c.last, c.bytes = 1, 0, 0
}

// drop forgets the entries lo to hi, which are at one end of the log.
func (c *entryCache) drop(lo, hi uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.empty() || hi < c.first || lo > c.last:
	case lo <= c.first && hi < c.last:
		for ; c.first <= hi; c.first++ {
			c.forget(c.first)
		}
	case lo > c.first && hi >= c.last:
		for ; c.last >= lo; c.last-- {
			c.forget(c.last)
		}
	default:
		c.clear()
	}
}

// get returns an entry, nil when the cache does not hold it.
func (c *entryCache) get(index uint64) *raft.Log {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.empty() || index < c.first || index > c.last {
		return nil
	}
	return c.ring[index%cacheEntries]
}
