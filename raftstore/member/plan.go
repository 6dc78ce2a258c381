package member

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// This file is pure: the next step is a function of the servers' states. It plans one step; after the step the caller looks again.

// Policy is the autopilot's limits and times.
type Policy struct {
	// MinQuorum is the number of voters below which no voter is removed, once there were that many.
	MinQuorum int
	// MaxVoters is the greatest number of voters; further servers stay learners.
	MaxVoters int
	// DeadAfter is how long a server must be gone, in gossip and for Raft, to count as dead.
	DeadAfter time.Duration
	// StableFor is how long a learner must have been healthy to be promoted.
	StableFor time.Duration
	// ContactWithin is the longest time since the leader's last message to a server that has contact.
	ContactWithin time.Duration
	// MaxTrailing is how many entries a healthy server may lack.
	MaxTrailing uint64
	// LearnerGoneAfter is how long a learner may be dead before it is removed.
	LearnerGoneAfter time.Duration
}

// DefaultPolicy returns the policy that Balsa uses.
func DefaultPolicy() Policy {
	return Policy{
		MinQuorum: 3, MaxVoters: 7, DeadAfter: 30 * time.Second, StableFor: 2 * time.Second,
		ContactWithin: time.Second, MaxTrailing: 250, LearnerGoneAfter: 24 * time.Hour,
	}
}

// ServerView is the state of a server of Raft's configuration in one look.
type ServerView struct {
	ID     string
	Name   string
	Voter  bool
	Leader bool
	// Gossip is the server's state in gossip; "" when gossip does not know it.
	Gossip State
	// Gone is since when the leader has seen that the server is not alive in gossip; zero while it is.
	Gone time.Time
	// Departed: the server left and does not come back.
	Departed bool
	// Contact: the server answered and has a recent message of the leader.
	Contact bool
	// Healthy: the server is alive, has contact and lacks few entries. Since is when Healthy changed last.
	Healthy bool
	Since   time.Time
	// Lag is how many entries the server lacks.
	Lag uint64
	// Busy is why the server is not healthy, "" when it is.
	Busy string
}

// dead reports whether a server counts as dead. If it does not, and it is gone, due is when it will.
func (s ServerView) dead(p Policy, now time.Time) (bool, time.Time) {
	if s.Leader || s.Contact || s.Gossip == StateAlive {
		return false, time.Time{}
	}
	if s.Departed {
		return true, time.Time{}
	}
	due := s.Gone.Add(p.DeadAfter)
	return !now.Before(due), due
}

// Verb is a kind of step.
type Verb string

const (
	Promote Verb = "promote"
	Demote  Verb = "demote"
	Remove  Verb = "remove"
)

// Action is one change of Raft's configuration.
type Action struct {
	Verb   Verb
	ID     string
	Reason string
}

// Decision is a step to take now, or none, with the reasons.
type Decision struct {
	Action *Action
	// Waits is what each server waits for, as text for people.
	Waits map[string]string
	// Again is when the passing of time may change the decision; zero: never.
	Again time.Time
	// Watch asks for frequent looks: a server is joining or missing.
	Watch bool
	// Tolerates is how many more voters may die before the quorum is lost; negative when it is lost already.
	Tolerates int
}

// quorum returns how many of n voters are a majority.
func quorum(n int) int { return n/2 + 1 }

// planner is the state of plan: the servers, sorted for the rules.
type planner struct {
	p             Policy
	now           time.Time
	voters, live  int
	dead          []ServerView // voters that are dead
	unsure        int          // voters neither with contact nor dead
	ready         []ServerView // learners fit to be promoted, the steadiest first
	coming        int          // learners not ready that may become so
	demotable     []ServerView
	goneLearners  []ServerView
	waits         map[string]string
	again         time.Time
	leaderPresent bool
}

// plan returns the next step for the servers of Raft's configuration. The first rule that applies wins:
//
//  1. a dead voter and a learner that is ready: promote the learner, so that the dead voter can be removed
//  2. a dead voter without which the others are a quorum: remove it
//  3. an even number of voters: promote a ready learner, or, when none is catching up, demote a voter: an even number needs a larger
//     quorum and survives no more losses
//  4. an odd number of voters and two ready learners: promote one
//  5. a learner that departed, or is gone for long: remove it
//
// No step leaves fewer live voters than a quorum.
func plan(servers []ServerView, p Policy, now time.Time) Decision {
	pl := &planner{p: p, now: now, waits: map[string]string{}}
	for _, s := range servers {
		pl.sort(s)
	}
	slices.SortFunc(pl.ready, func(a, b ServerView) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	byID := func(a, b ServerView) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(pl.dead, byID)
	slices.SortFunc(pl.goneLearners, byID)
	// The voter that became healthy last is demoted first.
	slices.SortFunc(pl.demotable, func(a, b ServerView) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.ID, b.ID)) })
	d := Decision{Waits: pl.waits, Tolerates: pl.live - quorum(pl.voters)}
	if pl.leaderPresent && d.Tolerates >= 0 {
		d.Action = pl.step()
	}
	pl.explain()
	d.Again, d.Watch = pl.again, pl.coming > 0 || pl.unsure > 0 || d.Action != nil
	return d
}

// sort puts a server into the lists that the rules read.
func (pl *planner) sort(s ServerView) {
	dead, due := s.dead(pl.p, pl.now)
	if !dead {
		pl.at(due)
	}
	switch {
	case s.Voter:
		pl.voters++
		pl.leaderPresent = pl.leaderPresent || s.Leader
		switch {
		case s.Leader || s.Contact:
			pl.live++
			if !s.Leader {
				pl.demotable = append(pl.demotable, s)
			}
		case dead:
			pl.dead = append(pl.dead, s)
		default:
			pl.unsure++
			pl.waits[s.ID] = "no contact; counts as dead when it stays away"
			if s.Gossip == StateAlive {
				pl.waits[s.ID] = "alive, but its Raft does not hear the leader"
			}
		}
	case dead:
		if since := s.Gone.Add(pl.p.LearnerGoneAfter); s.Departed || !pl.now.Before(since) {
			pl.goneLearners = append(pl.goneLearners, s)
		} else {
			pl.at(since)
		}
		pl.waits[s.ID] = "gone"
	case !s.Healthy:
		pl.coming++
		pl.waits[s.ID] = cmp.Or(s.Busy, "no contact")
	case pl.now.Before(s.Since.Add(pl.p.StableFor)):
		pl.coming++
		pl.at(s.Since.Add(pl.p.StableFor))
		pl.waits[s.ID] = fmt.Sprintf("caught up; a voter when it has been so for %v", pl.p.StableFor)
	default:
		pl.ready = append(pl.ready, s)
	}
}

func (pl *planner) at(t time.Time) {
	if !t.IsZero() && t.After(pl.now) && (pl.again.IsZero() || t.Before(pl.again)) {
		pl.again = t
	}
}

func (pl *planner) step() *Action {
	odd := pl.voters%2 == 1
	switch {
	case len(pl.dead) > 0 && len(pl.ready) > 0 && odd:
		return pl.promote("takes the place of a dead voter")
	case len(pl.dead) > 0 && pl.canRemove():
		return &Action{Remove, pl.dead[0].ID, "dead, and the others are a quorum without it"}
	case !odd && len(pl.ready) > 0 && pl.voters < pl.p.MaxVoters:
		return pl.promote("makes the number of voters odd")
	case !odd && pl.coming == 0 && pl.unsure == 0 && len(pl.dead) == 0 && len(pl.demotable) > 0:
		return &Action{Demote, pl.demotable[0].ID, "an even number of voters survives no more losses than one less"}
	case odd && len(pl.ready) > 1 && pl.voters+2 <= pl.p.MaxVoters:
		return pl.promote("with another one that is ready the number of voters stays odd")
	case len(pl.goneLearners) > 0:
		return &Action{Remove, pl.goneLearners[0].ID, "a learner that is gone"}
	}
	return nil
}

// promote returns the step that promotes the first ready learner. It is safe whenever there is a quorum: the new voter is live, and the
// quorum grows by at most one.
func (pl *planner) promote(why string) *Action { return &Action{Promote, pl.ready[0].ID, why} }

// canRemove reports whether a dead voter can be removed: the voters with contact are a quorum without it, and at least MinQuorum voters
// remain, if there were that many.
func (pl *planner) canRemove() bool {
	rest := pl.voters - 1
	return pl.live >= quorum(rest) && (rest >= pl.p.MinQuorum || pl.voters < pl.p.MinQuorum)
}

// explain fills in what each dead voter and each ready learner waits for.
func (pl *planner) explain() {
	for _, s := range pl.dead {
		switch {
		case pl.live < quorum(pl.voters):
			pl.waits[s.ID] = "dead; there is no quorum to remove it"
		case !pl.canRemove():
			pl.waits[s.ID] = "dead; stays a voter until a replacement has caught up"
		default:
			pl.waits[s.ID] = "dead; is being removed"
		}
	}
	for i, s := range pl.ready {
		switch {
		case pl.voters >= pl.p.MaxVoters:
			pl.waits[s.ID] = fmt.Sprintf("standby: takes over when a voter dies; %d voters are enough", pl.voters)
		case pl.voters == 1 && len(pl.ready) == 1:
			pl.waits[s.ID] = "standby: a third server makes the cluster survive a loss"
		case i == 0 && pl.voters%2 == 1 && len(pl.ready) == 1:
			pl.waits[s.ID] = fmt.Sprintf("standby: takes over when a voter dies; with one more server there are %d voters", pl.voters+2)
		default:
			pl.waits[s.ID] = "caught up; becomes a voter"
		}
	}
}
