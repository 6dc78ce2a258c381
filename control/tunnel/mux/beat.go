package mux

import "time"

// Beat asks the node for a sign of life once every interval until the connection is over. heard gets false when nothing
// came misses times in a row, and true when something comes after that.
//
// It counts its own questions and no time, so a server that was stopped or starved misses nothing by that.
func (o *Opener) Beat(interval func() time.Duration, misses int, heard func(bool)) {
	timer := time.NewTimer(interval())
	defer timer.Stop()
	last, missed := int64(-1), 0
	for {
		select {
		case <-o.link.done:
			return
		case <-timer.C:
		}
		now := o.link.heard.Load()
		if now != last {
			if missed >= misses {
				heard(true)
			}
			missed = 0
		} else if missed++; missed == misses {
			heard(false)
		}
		last = now
		o.link.sendNow(kindPing)
		timer.Reset(interval())
	}
}
