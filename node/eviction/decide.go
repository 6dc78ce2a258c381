package eviction

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// State is what is remembered between two decisions. The zero State remembers nothing.
type State struct {
	crossed   []bool // by threshold of the Config: crossed, or not yet back by its MinReclaim
	since     []time.Time
	condition map[v1.NodeConditionType]time.Time // when the cause of a condition was last seen
	acted     map[Signal]time.Time               // the newest observation that was acted on
}

// Decision is what follows from one round of observations.
type Decision struct {
	// Conditions of the node that are true, in the order of the table of signals.
	Conditions []v1.NodeConditionType
	// Starved is the threshold to reclaim something for; nil: nothing has to be reclaimed now.
	Starved *Threshold
}

// Decide judges observations. A threshold counts when it was crossed for its grace period; it goes on to count until
// MinReclaim more than its value is left. An observation is acted on once: what a reclaim has brought has to be measured
// before the next. Conditions stay for the transition period after their cause was last seen, so that pods do not come
// back the moment one is gone.
func Decide(c Config, was State, seen Observations, now time.Time) (Decision, State) {
	next := State{crossed: make([]bool, len(c.Thresholds)), since: make([]time.Time, len(c.Thresholds)),
		condition: map[v1.NodeConditionType]time.Time{}, acted: map[Signal]time.Time{}}
	for t, at := range was.condition {
		next.condition[t] = at
	}
	for s, at := range was.acted {
		next.acted[s] = at
	}
	var d Decision
	for i, t := range c.Thresholds {
		before := i < len(was.crossed) && was.crossed[i]
		counted := before && now.Sub(was.since[i]) >= t.Grace
		if !t.crossed(seen, Value{}) && !(counted && t.crossed(seen, t.MinReclaim)) {
			continue
		}
		next.crossed[i], next.since[i] = true, now
		if before {
			next.since[i] = was.since[i]
		}
		next.condition[t.Signal.condition()] = now
		counts := now.Sub(next.since[i]) >= t.Grace
		if counts && seen[t.Signal].At.After(was.acted[t.Signal]) && isUrgent(t, d.Starved) {
			d.Starved = &c.Thresholds[i]
		}
	}
	if d.Starved != nil {
		next.acted[d.Starved.Signal] = seen[d.Starved.Signal].At
	}
	for _, row := range signals {
		at, known := next.condition[row.condition]
		if !known {
			continue
		}
		if now.Sub(at) > 0 && now.Sub(at) >= c.TransitionPeriod {
			delete(next.condition, row.condition)
		} else if n := len(d.Conditions); n == 0 || d.Conditions[n-1] != row.condition {
			d.Conditions = append(d.Conditions, row.condition)
		}
	}
	return d, next
}

// isUrgent reports whether t is dealt with before the threshold found so far, which may be nil.
func isUrgent(t Threshold, found *Threshold) bool {
	return found == nil || t.Signal.place() < found.Signal.place()
}

// Reclaim is something of the node itself that is given up before a pod is.
type Reclaim string

const (
	DeadContainers Reclaim = "dead containers and their logs"
	UnusedImages   Reclaim = "unused images"
)

// NodeLevel returns what is reclaimed for a threshold before a pod has to go, in this order. separate says that images have
// a file system of their own.
func NodeLevel(t Threshold, separate bool) []Reclaim {
	switch {
	case !t.Signal.OfDisk():
		return nil
	case separate && !t.Signal.ofImageFs():
		return []Reclaim{DeadContainers} // of which logs are on the node's file system
	}
	return []Reclaim{DeadContainers, UnusedImages}
}

// Satisfied reports whether the shortage of t is over, with its MinReclaim.
func Satisfied(t Threshold, seen Observations) bool {
	_, known := seen[t.Signal]
	return known && !t.crossed(seen, t.MinReclaim)
}
