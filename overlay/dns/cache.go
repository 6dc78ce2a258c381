package dns

import (
	"container/list"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// cacheEntries and cacheBytes bound the cache; the least recently used entries are dropped first.
	cacheEntries  = 4096
	cacheBytes    = 2 << 20
	cacheOverhead = 256     // approximate memory of an entry beside its answer, in bytes
	cacheLargest  = 8 << 10 // larger answers are not kept
	// cacheTTL bounds how long an answer is kept. noSOATTL is the lifetime of a negative answer without a SOA record.
	cacheTTL = 30 * time.Second
	noSOATTL = 5 * time.Second
	// staleFor is how long after its expiry an answer may still be given when no resolver answers; staleTTL is the TTL of
	// such an answer, in seconds (RFC 8767).
	staleFor = time.Hour
	staleTTL = 5
	// After a failure resolvers are asked again after staleRetry if there is a stale answer, and after failedRetry if there
	// is none (RFC 9520).
	staleRetry  = 5 * time.Second
	failedRetry = time.Second
)

// cache keeps answers of other resolvers, packed. It is safe for concurrent use.
type cache struct {
	mu      sync.Mutex
	entries map[dns.Question]*list.Element // of *kept
	order   *list.List                     // the last used first
	bytes   int
}

// kept is one answer. All but retry is immutable.
type kept struct {
	q               dns.Question
	wire            []byte // empty: the entry only records that resolvers failed
	stored, expires time.Time
	retry           time.Time // after a failure: resolvers are not asked before this time
}

// found is the cache's result for a question.
type found struct {
	msg    *dns.Msg // nil: nothing
	stale  bool     // msg has expired
	failed bool     // resolvers failed a moment ago
}

func newCache() *cache {
	return &cache{entries: make(map[dns.Question]*list.Element), order: list.New()}
}

// get returns what is kept for a question whose name is in lower case.
func (c *cache) get(q dns.Question, now time.Time) found {
	c.mu.Lock()
	at := c.entries[q]
	if at == nil {
		c.mu.Unlock()
		return found{}
	}
	c.order.MoveToFront(at)
	k := *at.Value.(*kept)
	c.mu.Unlock()
	f := found{failed: now.Before(k.retry), stale: !now.Before(k.expires)}
	if len(k.wire) == 0 || now.Sub(k.expires) >= staleFor {
		return f
	}
	m := new(dns.Msg)
	if m.Unpack(k.wire) != nil {
		return f
	}
	age(m, uint32(now.Sub(k.stored)/time.Second), f.stale)
	f.msg = m
	return f
}

// age lowers the records' TTLs by the time that the answer was kept. A stale answer gets staleTTL.
func age(m *dns.Msg, seconds uint32, stale bool) {
	for _, records := range [][]dns.RR{m.Answer, m.Ns} {
		for _, rr := range records {
			h := rr.Header()
			switch {
			case stale:
				h.Ttl = staleTTL
			case h.Ttl > seconds:
				h.Ttl -= seconds
			default:
				h.Ttl = 1
			}
		}
	}
}

// put stores an answer for its own TTL, at most cacheTTL.
func (c *cache) put(q dns.Question, m *dns.Msg, now time.Time) {
	keep := lifetime(m)
	if keep <= 0 {
		return
	}
	small := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: m.Rcode, Response: true}, Compress: true, Answer: m.Answer, Ns: m.Ns}
	wire, err := small.Pack()
	if err != nil || len(wire) > cacheLargest {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(&kept{q: q, wire: wire, stored: now, expires: now.Add(keep)})
}

// fail remembers that no resolver had an answer.
func (c *cache) fail(q dns.Question, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.entries[q]; at != nil && len(at.Value.(*kept).wire) > 0 {
		k := *at.Value.(*kept)
		k.retry = now.Add(staleRetry)
		at.Value = &k
		return
	}
	c.set(&kept{q: q, stored: now, expires: now, retry: now.Add(failedRetry)})
}

func (c *cache) set(k *kept) {
	c.drop(c.entries[k.q])
	c.entries[k.q] = c.order.PushFront(k)
	c.bytes += k.size()
	for c.bytes > cacheBytes || len(c.entries) > cacheEntries {
		c.drop(c.order.Back())
	}
}

func (c *cache) drop(at *list.Element) {
	if at == nil {
		return
	}
	k := c.order.Remove(at).(*kept)
	delete(c.entries, k.q)
	c.bytes -= k.size()
}

// clear empties the cache, because new settings name other resolvers, which may answer differently.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.order.Init()
	c.bytes = 0
}

func (k *kept) size() int { return len(k.wire) + len(k.q.Name) + cacheOverhead }

// lifetime is how long an answer may be kept. For a negative answer it is the Minttl of the SOA record (RFC 2308).
func lifetime(m *dns.Msg) time.Duration {
	keep := cacheTTL
	if len(m.Answer) == 0 {
		keep = noSOATTL
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				keep = min(cacheTTL, time.Duration(min(soa.Hdr.Ttl, soa.Minttl))*time.Second)
			}
		}
	}
	for _, rr := range m.Answer {
		keep = min(keep, time.Duration(rr.Header().Ttl)*time.Second)
	}
	return keep
}

// lower returns the question with its name in lower case, which is the cache's key.
func lower(q dns.Question) dns.Question {
	return dns.Question{Name: strings.ToLower(q.Name), Qtype: q.Qtype, Qclass: dns.ClassINET}
}
