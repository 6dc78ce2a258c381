package joinlimit

import (
	"net/netip"
	"testing"
	"time"
)

func TestTheLimitersMemoryIsBounded(t *testing.T) {
	now := time.Now()
	l := New(func() time.Time { return now })
	for i := range 3 * maxSources {
		now = now.Add(time.Millisecond)
		l.Failed(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if len(l.sources) > maxSources {
		t.Fatalf("%d sources kept", len(l.sources))
	}
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2:3:4:5")
	for range maxFailures {
		l.Failed(a)
	}
	if l.Allow(a) || l.Allow(b) {
		t.Error("addresses of one /64 count as several sources")
	}
	now = now.Add(failureSpan)
	if !l.Allow(a) {
		t.Error("a source is locked out for ever")
	}
	if l.Failed(a) {
		t.Error("logged twice within ten minutes")
	}
	if now = now.Add(failureQuiet); !l.Failed(a) {
		t.Error("never logged again")
	}
}
