package podloop

import "time"

const (
	MinRetry = 100 * time.Millisecond
	MaxRetry = 10 * time.Second
)

const (
	crashDelay    = 10 * time.Second
	maxCrashDelay = 5 * time.Minute
	crashReset    = 2 * maxCrashDelay
)

// Retry remembers a failure until it may be tried again.
type Retry struct {
	Reason, Message string
	At, NotBefore   time.Time
	Delay           time.Duration
}

// After is the retry that follows r once the operation was done again: nil when it succeeded.
func (r *Retry) After(now time.Time, reason string, err error) *Retry {
	if err == nil {
		return nil
	}
	return r.Again(now, Failure{reason, err.Error()}, MinRetry, MaxRetry)
}

// Again is the retry that follows r after one more failure, doubling from
// first to most.
func (r *Retry) Again(now time.Time, f Failure, first, most time.Duration) *Retry {
	d := first
	if r != nil {
		d = min(2*r.Delay, most)
	}
	return &Retry{Reason: f.Reason, Message: f.Message, At: now, NotBefore: now.Add(d), Delay: d}
}

// Backoff is the crash back-off of one container.
type Backoff struct {
	Delay time.Duration // before the next restart; 0: never restarted
	Last  time.Time     // when it was restarted last
}

// restartAt is when a container that exited may start again. The wait counts
// from its end; of one that a probe made us kill, from the end of the run
// before, since killing it took its time already.
func restartAt(o *Observed, name string, in *Instance) time.Time {
	b := o.Backoff[name]
	from := in.Finished
	if in.ByProbe {
		p := o.previous(name)
		if p == nil {
			return time.Time{}
		}
		from = p.Finished
	}
	if b.Delay == 0 || from.Sub(b.Last) > crashReset {
		return time.Time{}
	}
	return from.Add(b.Delay)
}

// Next is the back-off after a restart now.
func (b Backoff) Next(now, finished time.Time) Backoff {
	switch {
	case b.Delay == 0 || finished.Sub(b.Last) > crashReset:
		return Backoff{crashDelay, now}
	default:
		return Backoff{min(2*b.Delay, maxCrashDelay), now}
	}
}

// BackoffOf is the back-off of a container of which only the newest run is
// known, as if each of its restarts had been a crash.
func BackoffOf(in *Instance) Backoff {
	if in.Attempt == 0 {
		return Backoff{}
	}
	return Backoff{Delay: min(crashDelay<<min(in.Attempt-1, 5), maxCrashDelay), Last: in.Started}
}
