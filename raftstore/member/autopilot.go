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

// Store is the part of *raftstore.Store that the autopilot uses: Raft's configuration, and whether this server leads. Only the leader
// makes changes.
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

// Stats is how far the log has come on a server, as that server reports it.
type Stats struct {
	Term         uint64
	LastIndex    uint64
	AppliedIndex uint64
	// LastContact is the time since the leader's last message to the server; 0 on the leader.
	LastContact time.Duration
	Leading     bool
}

// AutopilotConfig is the configuration of an Autopilot.
type AutopilotConfig struct {
	Store Store
	// Members and MembersChanged are Gossip.Members and Gossip.Changed.
	Members        func() []Member
	MembersChanged func() <-chan struct{}
	// Stats asks another server for its Stats. It is called from several goroutines at once, with a deadline, and only while a server is
	// missing or catching up.
	Stats func(ctx context.Context, serverID string) (Stats, error)
	// Removed, if set, is called after a server was removed from Raft's configuration.
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

// Autopilot keeps the number of voters odd and removes dead servers. One runs in every server; only the one on the leader acts.
//
// At rest, when every server has contact and none is joining, it waits for gossip and for a change of leader, and reads Raft's
// configuration every ten seconds without a request to any server. While a server is joining or missing it asks all servers twice a
// second.
type Autopilot struct {
	cfg    AutopilotConfig
	policy Policy
	log    *slog.Logger
	limit  *limiter

	mu    sync.Mutex
	term  uint64
	seen  map[string]seen // by server ID, in this term
	state Status
}

// seen is what the autopilot remembers of a server between two looks.
type seen struct {
	healthy bool
	since   time.Time // of the last change of healthy
	gone    time.Time // since when the server is not alive in gossip; zero while it is
}

const (
	lookSoon  = 500 * time.Millisecond
	lookLate  = 10 * time.Second
	askFor    = time.Second
	changeFor = 10 * time.Second
)

// NewAutopilot returns an autopilot. It starts nothing.
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
	return &Autopilot{cfg: cfg, policy: cfg.Policy, log: cfg.Logger, limit: newLimiter(), seen: map[string]seen{}}, nil
}

// Run acts whenever this server leads, until ctx ends. It returns nil.
func (a *Autopilot) Run(ctx context.Context) error {
	store := a.cfg.Store
	for ctx.Err() == nil {
		changed, members := store.LeaderChanged(), a.cfg.MembersChanged()
		leader, term := store.Leader()
		a.enterTerm(term)
		wait := time.Duration(-1)
		switch {
		case store.Leading():
			wait = a.round(ctx)
		case leader == store.ServerID():
			wait = lookSoon // elected, and still applying entries of earlier terms
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
	}
}

// enterTerm forgets what was seen in another term: a leader measures times from its own first look.
func (a *Autopilot) enterTerm(term uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term != term {
		clear(a.seen)
		a.term, a.state = term, Status{}
	}
}

// round looks, takes at most one step, and returns after how long to look again.
func (a *Autopilot) round(ctx context.Context) time.Duration {
	servers, _, err := a.look(ctx, askIfNeeded)
	if err != nil {
		a.once(slog.LevelWarn, "look", "autopilot: cannot read Raft's configuration, it is read again", "err", err)
		return lookSoon
	}
	now := time.Now()
	d := plan(servers, a.policy, now)
	a.setState(servers, d, now)
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

// asking says which looks ask the other servers for their Stats.
type asking int

const (
	askIfNeeded asking = iota // only while a server is missing, catching up, or the number is even
	askAlways
)

// look returns the state of every server of Raft's configuration.
func (a *Autopilot) look(ctx context.Context, mode asking) ([]ServerView, map[string]Stats, error) {
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
	ask := mode == askAlways || len(conf)%2 == 0
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
		m := byID[s.ID] // zero when gossip does not know the server
		v := ServerView{
			ID: s.ID, Name: m.Name, Voter: s.Voter, Leader: s.ID == leader,
			Gossip: m.State, Departed: m.State == StateLeft && m.Leaving == Departing,
		}
		if ask {
			a.assess(&v, stats, last)
		} else { // all servers are voters and alive: there is nothing to do
			v.Contact, v.Healthy = true, true
		}
		a.remember(&v, now)
		out = append(out, v)
	}
	a.prune(conf)
	return out, stats, nil
}

// assess fills in a server's contact, health and lag from its answer, or from the lack of one.
func (a *Autopilot) assess(v *ServerView, stats map[string]Stats, last uint64) {
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

// remember fills in since when the server is healthy or not, and since when it is gone.
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

// prune forgets servers that are no longer in Raft's configuration.
func (a *Autopilot) prune(conf []raftstore.Server) {
	in := map[string]bool{}
	for _, s := range conf {
		in[s.ID] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.seen, func(id string, _ seen) bool { return !in[id] })
}

// ask asks every other server for its Stats, concurrently, and waits for askFor at most.
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
				return // a server without an entry has not answered
			}
			mu.Lock()
			defer mu.Unlock()
			out[s.ID] = st
		})
	}
	wg.Wait()
	return out
}

// StatsOf returns the Stats of the server with store s.
func StatsOf(s Store) Stats {
	p := s.Progress()
	return Stats{Term: p.Term, LastIndex: p.LastIndex, AppliedIndex: p.AppliedIndex, LastContact: p.LastContact, Leading: s.Leading()}
}
