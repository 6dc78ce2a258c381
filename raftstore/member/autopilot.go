package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/raftstore"
)

// Store is what the autopilot needs of a *raftstore.Store: Raft's configuration
// and whether this server leads. Changes are made by the leader alone.
type Store interface {
	ServerID() string
	Leading() bool
	Leader() (id string, term uint64)
	LeaderChanged() <-chan struct{}
	Servers() ([]raftstore.Server, error)
	Progress() raftstore.Progress
	Promote(ctx context.Context, id string) error
	Demote(ctx context.Context, id string) error
	Remove(ctx context.Context, id string) error
}

var _ Store = (*raftstore.Store)(nil)

// Stats is how far a server is, as it says itself.
type Stats struct {
	Term         uint64
	LastIndex    uint64
	AppliedIndex uint64
	// LastContact is how long ago the server heard the leader; 0 on the leader.
	LastContact time.Duration
	Leading     bool
}

// AutopilotConfig of an Autopilot.
type AutopilotConfig struct {
	Store Store
	// Members and MembersChanged are those of a Gossip.
	Members        func() []Member
	MembersChanged func() <-chan struct{}
	// Stats asks another server. It is called from several goroutines at once,
	// only while something is under way, and with a deadline.
	Stats func(ctx context.Context, serverID string) (Stats, error)
	// Removed, if set, is called after a server was removed from Raft's
	// configuration.
	Removed func(serverID string)
	// Policy is DefaultPolicy when zero.
	Policy Policy
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c *AutopilotConfig) Validate() error {
	var errs []error
	if c.Store == nil || c.Members == nil || c.MembersChanged == nil || c.Stats == nil {
		errs = append(errs, errors.New("member: autopilot needs Store, Members, MembersChanged and Stats"))
	}
	if p := c.Policy; p != (Policy{}) && (p.MinQuorum < 1 || p.MaxVoters < 1 || p.DeadAfter <= 0 || p.StableFor < 0 || p.ContactWithin <= 0 || p.LearnerGoneAfter <= 0) {
		errs = append(errs, errors.New("member: autopilot policy has a number that is not positive"))
	}
	return errors.Join(errs...)
}

// Autopilot keeps the number of voters odd and the dead out of it. One runs in
// every server; the one beside the leader acts.
//
// At rest, when every server has contact and none is on its way, it waits for
// gossip and for a change of leader, and looks at Raft's configuration every
// ten seconds without asking anybody. While a server is coming or missing it
// asks twice a second.
type Autopilot struct {
	cfg    AutopilotConfig
	policy Policy
	log    *slog.Logger
	limit  *limiter
	nudge  chan struct{}

	mu    sync.Mutex
	term  uint64
	seen  map[string]seen // by server, in this term
	state Status
}

// seen is what is remembered of a server between looks.
type seen struct {
	healthy bool
	since   time.Time // of healthy being as it is
	gone    time.Time // since when gossip has not said alive
}

const (
	lookSoon  = 500 * time.Millisecond
	lookLate  = 10 * time.Second
	askFor    = time.Second
	changeFor = 10 * time.Second
)

// NewAutopilot checks the configuration. It starts nothing.
func NewAutopilot(cfg AutopilotConfig) (*Autopilot, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Policy == (Policy{}) {
		cfg.Policy = DefaultPolicy()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Autopilot{cfg: cfg, policy: cfg.Policy, log: cfg.Logger, limit: newLimiter(), nudge: make(chan struct{}, 1), seen: map[string]seen{}}, nil
}

// Nudge makes the autopilot look now: a learner was added.
func (a *Autopilot) Nudge() {
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}

// Run acts whenever this server leads, until ctx ends. It returns nil.
func (a *Autopilot) Run(ctx context.Context) error {
	store := a.cfg.Store
	for ctx.Err() == nil {
		changed, members := store.LeaderChanged(), a.cfg.MembersChanged()
		leader, term := store.Leader()
		a.enter(term)
		wait := time.Duration(-1)
		switch {
		case store.Leading():
			wait = a.round(ctx)
		case leader == store.ServerID():
			wait = lookSoon // elected, and still applying what was before
		}
		if wait < 0 {
			a.pause(ctx, nil, changed, members)
			continue
		}
		timer := time.NewTimer(wait)
		a.pause(ctx, timer.C, changed, members)
		timer.Stop()
	}
	return nil
}

func (a *Autopilot) pause(ctx context.Context, timer <-chan time.Time, leader, members <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-timer:
	case <-leader:
	case <-members:
	case <-a.nudge:
	}
}

// enter forgets what was seen in another term: a leader counts from its own
// first look.
func (a *Autopilot) enter(term uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term != term {
		clear(a.seen)
		a.term, a.state = term, Status{}
	}
}

// round looks, takes at most one step, and says when to look again.
func (a *Autopilot) round(ctx context.Context) time.Duration {
	servers, _, err := a.look(ctx, false)
	if err != nil {
		a.once(slog.LevelWarn, "look", "autopilot: cannot see Raft's configuration", "err", err)
		return lookSoon
	}
	now := time.Now()
	d := plan(servers, a.policy, now)
	a.keep(servers, d, now)
	if d.Action == nil {
		switch {
		case d.Watch:
			return lookSoon
		case !d.Again.IsZero():
			return min(lookLate, max(time.Until(d.Again), time.Millisecond))
		}
		return lookLate
	}
	if err := a.apply(ctx, *d.Action); err != nil {
		a.once(slog.LevelWarn, "apply\x00"+d.Action.ID, "autopilot: a step failed and is tried again", "step", d.Action.Verb, "server", d.Action.ID, "err", err)
		return lookSoon
	}
	a.log.Info("autopilot: changed who votes", "step", d.Action.Verb, "server", d.Action.ID, "reason", d.Action.Reason)
	return time.Millisecond
}

func (a *Autopilot) once(level slog.Level, key, msg string, args ...any) {
	logger{a.log, a.limit}.once(level, key, msg, args...)
}

func (a *Autopilot) apply(ctx context.Context, act Action) error {
	ctx, cancel := context.WithTimeout(ctx, changeFor)
	defer cancel()
	switch act.Verb {
	case Promote:
		return a.cfg.Store.Promote(ctx, act.ID)
	case Demote:
		return a.cfg.Store.Demote(ctx, act.ID)
	case Remove:
		if err := a.cfg.Store.Remove(ctx, act.ID); err != nil {
			return err
		}
		if a.cfg.Removed != nil {
			a.cfg.Removed(act.ID)
		}
		return nil
	}
	return fmt.Errorf("member: no step %q", act.Verb)
}

// look sees every server of Raft's configuration. Others are asked for their
// progress only when it matters, or always when all is set.
func (a *Autopilot) look(ctx context.Context, all bool) ([]ServerView, map[string]Stats, error) {
	conf, err := a.cfg.Store.Servers()
	if err != nil {
		return nil, nil, err
	}
	leader, _ := a.cfg.Store.Leader()
	byID := map[string]Member{}
	for _, m := range a.cfg.Members() {
		if m.ServerID != "" {
			byID[m.ServerID] = m
		}
	}
	ask := all || len(conf)%2 == 0
	for _, s := range conf {
		ask = ask || !s.Voter || byID[s.ID].State != StateAlive
	}
	var stats map[string]Stats
	if ask {
		stats = a.ask(ctx, conf)
	}
	now, last := time.Now(), a.cfg.Store.Progress().LastIndex
	if l, ok := stats[leader]; ok {
		last = l.LastIndex
	}
	out := make([]ServerView, 0, len(conf))
	for _, s := range conf {
		m := byID[s.ID] // the zero value: gossip knows no such server
		v := ServerView{
			ID: s.ID, Name: m.Name, Voter: s.Voter, Leader: s.ID == leader,
			Gossip: m.State, Departed: m.State == StateLeft && m.Leaving == Departing,
		}
		if ask {
			a.judge(&v, stats, last)
		} else { // all voters are alive: that is enough to do nothing
			v.Contact, v.Healthy = true, true
		}
		a.remember(&v, now)
		out = append(out, v)
	}
	a.prune(conf)
	return out, stats, nil
}

// judge fills in what the answer, or its absence, says.
func (a *Autopilot) judge(v *ServerView, stats map[string]Stats, last uint64) {
	st, answered := stats[v.ID]
	if last > st.LastIndex {
		v.Lag = last - st.LastIndex
	}
	v.Contact = answered && (v.Leader || st.LastContact <= a.policy.ContactWithin)
	v.Healthy = v.Contact && v.Gossip == StateAlive && v.Lag <= a.policy.MaxTrailing
	switch {
	case v.Healthy:
	case !answered:
		v.Busy = "does not answer"
	case !v.Contact:
		v.Busy = fmt.Sprintf("has not heard the leader for %v", st.LastContact.Round(time.Millisecond))
	case v.Gossip != StateAlive:
		v.Busy = "answers, but gossip does not find it"
	default:
		v.Busy = fmt.Sprintf("catching up: %d entries behind", v.Lag)
	}
}

// remember carries over since when things are as they are.
func (a *Autopilot) remember(v *ServerView, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, ok := a.seen[v.ID]
	if !ok || old.healthy != v.Healthy {
		old.healthy, old.since = v.Healthy, now
	}
	switch {
	case v.Gossip == StateAlive:
		old.gone = time.Time{}
	case old.gone.IsZero():
		old.gone = now
	}
	v.Since, v.Gone = old.since, old.gone
	a.seen[v.ID] = old
}

// prune forgets servers that are not in Raft's configuration any more.
func (a *Autopilot) prune(conf []raftstore.Server) {
	in := map[string]bool{}
	for _, s := range conf {
		in[s.ID] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.seen, func(id string, _ seen) bool { return !in[id] })
}

// ask asks every server but this one at once, and waits for askFor at most.
func (a *Autopilot) ask(ctx context.Context, conf []raftstore.Server) map[string]Stats {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	self := a.cfg.Store.ServerID()
	out := map[string]Stats{self: StatsOf(a.cfg.Store)}
	for _, s := range conf {
		if s.ID == self {
			continue
		}
		wg.Go(func() {
			var st Stats
			err := fault.Contain("autopilot", func() (err error) { st, err = a.cfg.Stats(ctx, s.ID); return err })
			if err != nil {
				return // no answer is an answer
			}
			mu.Lock()
			defer mu.Unlock()
			out[s.ID] = st
		})
	}
	wg.Wait()
	return out
}

// StatsOf is what a server answers when it is asked for its Stats.
func StatsOf(s Store) Stats {
	p := s.Progress()
	return Stats{Term: p.Term, LastIndex: p.LastIndex, AppliedIndex: p.AppliedIndex, LastContact: p.LastContact, Leading: s.Leading()}
}
