package podloop

import "time"

// MinRetry and MaxRetry bound the delay before an operation that failed begins again.
const (
	MinRetry = 100 * time.Millisecond
	MaxRetry = 10 * time.Second
)

// The crash back-off is upstream's: 10 s, doubled at each restart up to 5 minutes, and forgotten after a run of 10 minutes.
const (
	crashDelay    = 10 * time.Second
	maxCrashDelay = 5 * time.Minute
	crashReset    = 2 * maxCrashDelay
)

// Retry is a failure of an operation and the time from which the operation may begin again. A nil Retry means no failure.
type Retry struct {
	Reason, Message string
	At, NotBefore   time.Time
	Delay           time.Duration
}

// After returns the retry that follows r when the operation ended with err: nil when err is nil.
func (r *Retry) After(now time.Time, reason string, err error) *Retry {
	if err == nil {
		return nil
	}
	return r.Again(now, Failure{reason, err.Error()}, MinRetry, MaxRetry)
}

// Again returns the retry that follows r after one more failure. The delay doubles from first to most.
func (r *Retry) Again(now time.Time, f Failure, first, most time.Duration) *Retry {
	d := first
	if r != nil {
		d = min(2*r.Delay, most)
	}
	return &Retry{Reason: f.Reason, Message: f.Message, At: now, NotBefore: now.Add(d), Delay: d}
}

// Backoff is the crash back-off of one container.
type Backoff struct {
	Delay time.Duration // before the next restart; 0: the container was never restarted
	Last  time.Time     // when it was restarted last
}

// restartAt returns when a container that exited may start again; zero means at once. The delay counts from the end of the
// run. After a stop because of a probe it counts from the end of the run before, because the stop itself took time.
func restartAt(o *Observed, name string, in *Instance) time.Time {
	if in.Replaced {
		return time.Time{}
	}
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

// Next returns the back-off after a restart at now of a run that ended at finished.
func (b Backoff) Next(now, finished time.Time) Backoff {
	switch {
	case b.Delay == 0 || finished.Sub(b.Last) > crashReset:
		return Backoff{crashDelay, now}
	default:
		return Backoff{min(2*b.Delay, maxCrashDelay), now}
	}
}

// BackoffOf returns the back-off of a container of which only the newest run is known, after a restart of the agent: as if
// each restart so far had been a crash.
func BackoffOf(in *Instance) Backoff {
	if in.Attempt == 0 {
		return Backoff{}
	}
	return Backoff{Delay: min(crashDelay<<min(in.Attempt-1, 5), maxCrashDelay), Last: in.Started}
}
