package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/policy/plan"
	"github.com/balsahq/balsa/overlay/policy/rules"
)

const (
	// gather is how long the engine waits for more changes after one that nobody waits for; retry is when it tries again,
	// twice as late each time until retryMost.
	gather           = 20 * time.Millisecond
	retry, retryMost = time.Second, 10 * time.Second
	// cutPause is between two looks at all connections of the node.
	cutPause = time.Second
	// patience is how long Admit waits for the kernel.
	patience = 20 * time.Second
)

// Why a pod is not admitted.
var (
	ErrNotSynced  = errors.New("network policies are not known yet: the API has not been read")
	ErrNotApplied = errors.New("network policies are not in the kernel")
)

// Engine keeps the policies of one node in the kernel.
type Engine struct {
	cfg  Config
	ns   host.Namespace
	wake chan struct{}

	mu    sync.Mutex
	state *plan.State
	read  bool // policies were read once
	// changes counts what happened to the state, applied is how many of that the kernel has; progress is closed and made
	// anew when applied grows or failed changes.
	changes, applied uint64
	progress         chan struct{}
	failed           error
	urgent           bool // somebody waits
	seen             seen
	look, rebuild    bool // do not trust what was written before
	faults           map[string]string

	// Owned by run.
	tables *rules.Tables
	live   *session // while there are policies
	clean  bool     // there are no tables
	// changed: connections that were cut must be judged again, tightened: all must. Neither is done again before lastCut is
	// cutPause ago.
	changed, tightened bool
	lastCut            time.Time
}

// seen says which of the watches have delivered their first list.
type seen struct{ pods, namespaces bool }

// New prepares an engine; nothing is watched and the kernel is not touched before Run.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	ns, err := host.OpenNamespace(cfg.NetNS)
	if err != nil {
		return nil, err
	}
	return &Engine{
		cfg: cfg, ns: ns, wake: make(chan struct{}, 1), state: plan.NewState(), progress: make(chan struct{}),
		faults: map[string]string{},
	}, nil
}

// Cleanup removes every table an Engine ever made from a network namespace. No Engine may be running in it.
func Cleanup(netns string) error {
	ns, err := host.OpenNamespace(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error { return rules.Remove(ns.FD()) })
}

// Run keeps the policies until ctx ends. What it made stays in the kernel.
func (e *Engine) Run(ctx context.Context) error {
	defer e.ns.Close()
	tables, err := rules.Open(rules.Config{IPv6: e.cfg.IPv6, Bridge: e.cfg.Bridge}, e.ns.FD())
	if err != nil {
		return err
	}
	defer tables.Close()
	e.tables = tables
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		fault.KeepDo(ctx, "overlay/policy", e.watchPolicies)
	}()
	defer func() {
		cancel()
		<-watched
		e.leave()
	}()
	wait, cut := time.NewTimer(0), time.NewTimer(0)
	defer wait.Stop()
	defer cut.Stop()
	for delay := retry; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cut.C:
			_ = fault.Do("overlay/policy", e.cut) // the next change cuts again
			continue
		case <-e.wake:
		}
		if !e.hurry() {
			pause(ctx, wait, gather)
		}
		err := fault.Contain("overlay/policy", func() error {
			fault.Point("overlay/policy")
			return e.step(ctx)
		})
		if err != nil && ctx.Err() == nil {
			if errors.Is(err, fault.ErrPanic) {
				e.restart()
			}
			e.report(err)
			pause(ctx, wait, delay)
			delay = min(2*delay, retryMost)
			e.nudge()
		} else {
			delay = retry
		}
		if e.changed {
			cut.Reset(max(0, cutPause-time.Since(e.lastCut)))
		}
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, t *time.Timer, d time.Duration) {
	t.Reset(d)
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// nudge wakes run; it never blocks.
func (e *Engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// change changes the state under the lock, and wakes run if do says that something changed.
func (e *Engine) change(do func(s *plan.State) bool) {
	if e.changeState(do) {
		e.nudge()
	}
}

func (e *Engine) changeState(do func(s *plan.State) bool) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if changed = do(e.state); changed {
		e.changes++
	}
	return changed
}

// restart forgets what was learned, because a panic may have left it half changed. The kernel keeps what it has until
// everything has been learned anew.
func (e *Engine) restart() {
	e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.look, e.rebuild = true, true
}

func (e *Engine) hurry() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	urgent := e.urgent
	e.urgent = false
	return urgent
}

// report logs an error once, and tells those who wait.
func (e *Engine) report(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil || e.failed.Error() != err.Error() {
		e.cfg.Logger.Warn("network policies are not in the kernel", "err", err)
	}
	e.failed = err
	e.announce()
}

// announce wakes those who wait; e.mu is held.
func (e *Engine) announce() {
	close(e.progress)
	e.progress = make(chan struct{})
}

// step makes the kernel what it should be, as far as is known.
func (e *Engine) step(ctx context.Context) error {
	e.mu.Lock()
	read, any := e.read, e.state.Policies()
	e.mu.Unlock()
	switch {
	case !read:
		return nil
	case !any:
		return e.rest()
	}
	e.clean = false
	if e.live == nil {
		e.live = e.enter(ctx)
		return nil
	}
	return e.apply()
}

// rest is what to do when there is no policy.
func (e *Engine) rest() error {
	e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state.Policies() {
		return nil // one came meanwhile, and woke us again
	}
	if !e.clean {
		if err := e.tables.Remove(); err != nil {
			return err
		}
		e.clean = true
	}
	e.done()
	return nil
}

// done: the kernel has all of the state; e.mu is held.
func (e *Engine) done() {
	e.applied, e.failed = e.changes, nil
	e.announce()
}

// apply writes what differs.
func (e *Engine) apply() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.seen.pods || !e.seen.namespaces {
		return nil
	}
	switch {
	case !e.live.settled:
		e.state.Settle()
		e.live.settled, e.look = true, true
		fallthrough
	case e.look:
		if err := e.learn(); err != nil {
			return err
		}
	}
	if e.rebuild {
		e.state.Forget()
	}
	e.look, e.rebuild = false, false
	change := e.state.Change()
	if !change.Empty() {
		e.changed = true
		if err := e.tables.Apply(change); err != nil {
			e.rebuild = true
			return err
		}
	}
	e.state.Accept()
	e.done()
	e.tightened = e.tightened || e.state.Tightens(change)
	return nil
}

// learn reads what the kernel has.
func (e *Engine) learn() error {
	found, err := e.tables.Read()
	if err != nil {
		return fmt.Errorf("read policies in the kernel: %w", err)
	}
	if found == nil {
		e.state.Forget()
		return nil
	}
	e.state.Assume(found)
	return nil
}

// foreignChange takes in that another program changed the tables, or may have.
func (e *Engine) foreignChange(f nft.Foreign) {
	e.mu.Lock()
	e.look = e.look || f.Missed
	e.rebuild = e.rebuild || !f.Missed
	e.mu.Unlock()
	if !f.Missed {
		e.cfg.Logger.Warn("another program changed the rules of network policies; they are made anew", "table", rules.Name, "program", f.Program)
	}
	e.nudge()
}

// Admit returns when the kernel has the rules of a pod of this node for the addresses it was given, so that something may be
// started in it. The pod is as the API has it; addresses that an earlier call said are no longer its own. It returns an error
// that wraps ErrNotSynced or ErrNotApplied when that does not happen in time; to call it again is always right, and costs
// nothing when all is in place.
func (e *Engine) Admit(ctx context.Context, pod *v1.Pod, addresses []netip.Addr) error {
	told, ok := plan.PodOf(pod, e.cfg.NodeName)
	if pod.Spec.HostNetwork {
		return nil
	}
	if !ok { // it has ended in the API, and is about to end here
		return nil
	}
	told.Addresses = nil
	for _, a := range addresses {
		told.Addresses = append(told.Addresses, a.Unmap())
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var want uint64 // how many changes the kernel must have
	for {
		e.mu.Lock()
		if e.read && !e.state.Policies() {
			e.mu.Unlock()
			return nil
		}
		if e.read && want == 0 {
			if e.state.Tell(told) {
				e.changes++
			}
			want = e.changes
		}
		read, failed, progress := e.read, e.failed, e.progress
		ready := read && e.applied >= want
		e.urgent = e.urgent || !ready
		e.mu.Unlock()
		if ready {
			return nil
		}
		e.nudge()
		select {
		case <-progress:
		case <-ctx.Done():
			if !read {
				return ErrNotSynced
			}
			return errors.Join(ErrNotApplied, failed)
		}
	}
}
