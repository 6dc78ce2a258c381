package joinlimit

import (
	"net/netip"
	"sync"
	"time"
)

const (
	maxFailures  = 10 // failed joins of one source within failureSpan; more are refused unread
	failureSpan  = time.Minute
	maxSources   = 4096
	failureQuiet = 10 * time.Minute // after that long without a failure a source is forgotten, and heard of again
)

// Limiter counts failed joins by source. Its memory is bounded: when it is full, the source that failed longest ago
// makes room.
type Limiter struct {
	now func() time.Time

	mu      sync.Mutex
	sources map[netip.Addr]*source
}

type source struct {
	failures int
	began    time.Time // of the span that failures counts
	last     time.Time
}

func New(now func() time.Time) *Limiter {
	return &Limiter{now: now, sources: map[netip.Addr]*source{}}
}

// SourceOf is an IPv4 address, or the /64 of an IPv6 one: a household, not a privacy address.
func SourceOf(a netip.Addr) netip.Addr {
	if a.Is6() {
		if p, err := a.WithZone("").Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// Allow reports whether a source may try.
func (l *Limiter) Allow(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[SourceOf(from)]
	return s == nil || s.failures < maxFailures || l.now().Sub(s.began) >= failureSpan
}

// Failed counts a failure and reports whether it is the source's first one in a long time, which is worth a line.
func (l *Limiter) Failed(from netip.Addr) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, now := SourceOf(from), l.now()
	s := l.sources[from]
	if s != nil && now.Sub(s.last) >= failureQuiet {
		s = nil
	}
	if first = s == nil; first {
		l.makeRoom(from)
		s = &source{began: now}
		l.sources[from] = s
	}
	if now.Sub(s.began) >= failureSpan {
		s.began, s.failures = now, 0
	}
	s.failures++
	s.last = now
	return first
}

func (l *Limiter) makeRoom(from netip.Addr) {
	if _, there := l.sources[from]; there || len(l.sources) < maxSources {
		return
	}
	var oldest netip.Addr
	var last time.Time
	for a, s := range l.sources {
		if last.IsZero() || s.last.Before(last) {
			oldest, last = a, s.last
		}
	}
	delete(l.sources, oldest)
}
