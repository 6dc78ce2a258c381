package mux

import "time"

// Beat sends a ping to the node once every interval until the connection ends. It calls heard with false when misses pings
// in a row got no frame at all, and with true when a frame arrives after that.
//
// It counts pings and not time, so that a server that was stopped or got no CPU does not count nodes as away.
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
