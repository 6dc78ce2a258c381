package mux

import (
	"sync"
	"time"
)

// deadline is a channel that is closed at a time, as in net.Pipe.
type deadline struct {
	mu    *sync.Mutex
	timer *time.Timer
	late  chan struct{}
}

func newDeadline() deadline { return deadline{mu: new(sync.Mutex), late: make(chan struct{})} }

// set moves the deadline; the zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.late // the timer has fired and is about to close it
	}
	d.timer = nil
	over := isClosed(d.late)
	if t.IsZero() {
		if over {
			d.late = make(chan struct{})
		}
		return
	}
	if wait := time.Until(t); wait > 0 {
		if over {
			d.late = make(chan struct{})
		}
		late := d.late
		d.timer = time.AfterFunc(wait, func() { close(late) })
		return
	}
	if !over {
		close(d.late)
	}
}

// passed returns a channel that is closed when the deadline passes.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.late
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
