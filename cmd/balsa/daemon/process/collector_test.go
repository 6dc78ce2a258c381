package process

import (
	"runtime"
	"runtime/debug"
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

func TestMemoryIsGivenBackAtRest(t *testing.T) {
	const mib = 1 << 20
	before := held{live: 100 * mib, here: 170 * mib, allocated: 1000 * mib}
	for _, c := range []struct {
		name        string
		now         held
		give, again bool
	}{
		{"nothing happened", before.with(170, 1000), true, false},
		{"little is left", before.with(150, 1000), false, false},
		{"there is still something to do", before.with(240, 1050), false, true},
	} {
		if give, again := c.now.rest(before); give != c.give || again != c.again {
			t.Errorf("%s: give %v, look again %v", c.name, give, again)
		}
	}
}

func (h held) with(here, allocated uint64) held {
	h.here, h.allocated = here<<20, allocated<<20
	return h
}

// What is held is looked for where the runtime counts it.
func TestHeldIsWhatTheHeapHas(t *testing.T) {
	objects := make([][]byte, 100)
	for i := range objects {
		objects[i] = make([]byte, 1<<20)
	}
	if h := look(); h.here < 100<<20 {
		t.Fatalf("100 MiB are there: %+v", h)
	}
	runtime.KeepAlive(objects)
	debug.FreeOSMemory()
	if h := look(); h.here > h.live+32<<20 {
		t.Fatalf("given back: %+v", h)
	}
}
