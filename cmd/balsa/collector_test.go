package main

import (
	"testing"
	"time"
)

func TestTheHeapMayGrowUnderLoadOnly(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	after := func(d time.Duration, live uint64) (int, bool) {
		now = now.Add(d)
		return p.collected(now, live)
	}
	for range 10 {
		if percent, busy := after(time.Minute, 50<<20); busy || percent != gcPercent {
			t.Fatalf("at rest: %d%%", percent)
		}
	}
	for i := range busyTimes {
		percent, busy := after(time.Second/2, 50<<20)
		if busy != (i == busyTimes-1) || busy && percent != busyPercent {
			t.Fatalf("after %d collections in a row: %d%%, busy %v", i+1, percent, busy)
		}
	}
	// A slower pace is what a larger heap brings about, and no reason to go back.
	if percent, busy := after(5*time.Second, 50<<20); !busy || percent != busyPercent {
		t.Fatalf("still under load: %d%%", percent)
	}
	// What is gathered is bounded, whatever is live.
	if percent, _ := after(time.Second, 192<<20); percent != 100 {
		t.Fatalf("192 MiB live: %d%%", percent)
	}
	if percent, _ := after(time.Second, 4<<30); percent != gcPercent {
		t.Fatalf("4 GiB live: %d%%", percent)
	}
	p.quiet()
	if percent, busy := after(15*time.Second, 50<<20); busy || percent != gcPercent {
		t.Fatalf("after the load: %d%%", percent)
	}
}
