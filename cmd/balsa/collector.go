package main

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

// followCollector sets the pace until ctx ends. When the load is over, what it
// needed is given back at once.
func followCollector(ctx context.Context) {
	ended := make(chan struct{}, 1)
	afterCollection(ctx, ended)
	var p pace
	quiet := time.NewTimer(quietAfter)
	quiet.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := gcPercent
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
			metrics.Read(live)
			to, busy := p.collected(time.Now(), live[0].Value.Uint64())
			set(to)
			if busy {
				quiet.Reset(quietAfter)
			}
		case <-quiet.C:
			p.quiet()
			set(gcPercent)
			debug.FreeOSMemory()
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
