package process

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// busyHeadroom is how much garbage may gather between two collections while
	// there is much to do, and busyPercent how much of what is live at most.
	busyHeadroom = 192 << 20
	busyPercent  = 300
	// Collections that end busyPace after one another, busyTimes in a row, mean
	// that there is much to do; none in quietAfter means that it is done.
	busyPace   = 2 * time.Second
	busyTimes  = 3
	quietAfter = 5 * time.Second
	// worthGiving is how much more than what is live has to be held for it to be
	// given back, which costs a collection; not while more than restless was
	// allocated in quietAfter: it would be taken again.
	worthGiving = 64 << 20
	restless    = 8 << 20
)

// pace decides how large the heap may grow. A collection looks at everything that
// is live, whatever there is to collect: under load, when one follows the other, it
// pays to let garbage gather; at rest memory counts.
type pace struct {
	last time.Time // when a collection ended
	fast int       // so many ended soon after the one before
}

// collected is called with what is live when a collection has ended at now. It
// returns the percentage to go on with, and whether there is much to do.
func (p *pace) collected(now time.Time, live uint64) (percent int, busy bool) {
	switch {
	case now.Sub(p.last) < busyPace:
		p.fast = min(p.fast+1, busyTimes)
	case p.fast < busyTimes: // once it is busy it stays so until it is quiet
		p.fast = 0
	}
	p.last = now
	if p.fast < busyTimes {
		return gcPercent, false
	}
	return min(busyPercent, max(gcPercent, int(busyHeadroom*100/max(live, 1)))), true
}

// quiet is called when there was no collection for a while.
func (p *pace) quiet() { p.fast = 0 }

// held is what the heap is, in bytes.
type held struct {
	live      uint64 // found by the last collection
	here      uint64 // taken from the kernel for objects and not given back
	allocated uint64 // ever
}

func look() held {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	at := func(i int) uint64 { return samples[i].Value.Uint64() }
	return held{live: at(0), allocated: at(1), here: at(2) + at(3)}
}

// rest says what to do when there was no collection for quietAfter, at whose
// beginning the heap was as before says: give memory back, look again, or neither.
func (h held) rest(before held) (give, again bool) {
	if h.here < h.live+worthGiving {
		return false, false
	}
	moving := h.allocated-before.allocated > restless
	return !moving, moving
}

// followCollector sets the pace until ctx ends. When the load is over, what it
// needed is given back at once.
func followCollector(ctx context.Context) {
	ended := make(chan struct{}, 1)
	afterCollection(ctx, ended)
	var p pace
	quiet := time.NewTimer(quietAfter)
	defer quiet.Stop()
	percent, before := gcPercent, look()
	set := func(to int) {
		if to != percent {
			debug.SetGCPercent(to)
			percent = to
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			before = look()
			to, _ := p.collected(time.Now(), before.live)
			set(to)
			quiet.Reset(quietAfter)
		case <-quiet.C:
			p.quiet()
			set(gcPercent)
			now := look()
			give, again := now.rest(before)
			if give {
				debug.FreeOSMemory()
			}
			if before = now; again {
				quiet.Reset(quietAfter)
			}
		}
	}
}

// afterCollection sends to ended after each collection until ctx ends, and waits
// for nobody. What is told is a finalizer's turn, which comes when a collection has
// found that nobody has the object.
func afterCollection(ctx context.Context, ended chan<- struct{}) {
	if ctx.Err() != nil {
		return
	}
	type mark struct{ _ [16]byte } // not so small that it shares a block with others
	runtime.SetFinalizer(&mark{}, func(*mark) {
		select {
		case ended <- struct{}{}:
		default:
		}
		afterCollection(ctx, ended)
	})
}
