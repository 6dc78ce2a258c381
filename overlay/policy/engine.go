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
	// batchDelay is how long the engine waits for more changes after one for which no Admit waits. After a failure it tries again
	// after retry, then after twice as long each time up to retryMost.
	batchDelay       = 20 * time.Millisecond
	retry, retryMost = time.Second, 10 * time.Second
	// cutPause is the least time between two checks of all connections of the node.
	cutPause = time.Second
	// admitTimeout is how long Admit waits for the kernel.
	admitTimeout = 20 * time.Second
)

// Errors of Admit.
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
	read  bool // the first list of policies is complete
	// changes counts the changes of the state, applied is how many of them the kernel has. progress is closed and replaced when
	// applied grows or failed changes.
	changes, applied uint64
	progress         chan struct{}
	failed           error
	urgent           bool // an Admit waits
	listed           listed
	reread, rebuild  bool // read the kernel before the next change; replace the tables with it
	faults           map[string]string

	// Owned by run.
	tables   *rules.Tables
	watching *watches // nil while there are no policies
	removed  bool     // there are no tables
	// changed: the connections that were cut must be checked again; tightened: all connections must. Neither happens before
	// lastCut is cutPause ago.
	changed, tightened bool
	lastCut            time.Time
}

// listed records which watches have delivered their first list.
type listed struct{ pods, namespaces bool }

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

// Run keeps the policies in the kernel until ctx ends. The rules stay there.
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
		e.stopWatches()
	}()
	wait, cut := time.NewTimer(0), time.NewTimer(0)
	defer wait.Stop()
	defer cut.Stop()
	for delay := retry; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cut.C:
			_ = fault.Do("overlay/policy", e.cutConnections) // after a panic the next change cuts again
			continue
		case <-e.wake:
		}
		if !e.takeUrgent() {
			pause(ctx, wait, batchDelay)
		}
		err := fault.Contain("overlay/policy", func() error {
			fault.Point("overlay/policy")
			return e.reconcile(ctx)
		})
		if err != nil && ctx.Err() == nil {
			if errors.Is(err, fault.ErrPanic) {
				e.restart()
			}
			e.reportFailure(err)
			pause(ctx, wait, delay)
			delay = min(2*delay, retryMost)
			e.wakeRun()
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

// wakeRun wakes run; it never blocks.
func (e *Engine) wakeRun() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// change calls do under the lock, and wakes Run if do reports a change.
func (e *Engine) change(do func(s *plan.State) bool) {
	if e.changeState(do) {
		e.wakeRun()
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

// restart drops the state of pods and namespaces, because a panic may have left it half changed. The kernel keeps its rules
// until everything has been listed again.
func (e *Engine) restart() {
	e.stopWatches()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reread, e.rebuild = true, true
}

func (e *Engine) takeUrgent() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	urgent := e.urgent
	e.urgent = false
	return urgent
}

// reportFailure logs an error once, and wakes the Admits that wait.
func (e *Engine) reportFailure(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil || e.failed.Error() != err.Error() {
		e.cfg.Logger.Warn("cannot write network policies to the kernel; the former rules stay until a later attempt succeeds", "err", err)
	}
	e.failed = err
	e.wakeAdmits()
}

// wakeAdmits wakes the Admits that wait; e.mu is held.
func (e *Engine) wakeAdmits() {
	close(e.progress)
	e.progress = make(chan struct{})
}

// reconcile brings the kernel up to date, once the first lists are complete.
func (e *Engine) reconcile(ctx context.Context) error {
	e.mu.Lock()
	read, any := e.read, e.state.Policies()
	e.mu.Unlock()
	switch {
	case !read:
		return nil
	case !any:
		return e.removeTables()
	}
	e.removed = false
	if e.watching == nil {
		e.watching = e.startWatches(ctx)
		return nil
	}
	return e.apply()
}

// removeTables stops the watches and removes the tables, because there is no policy.
func (e *Engine) removeTables() error {
	e.stopWatches()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state.Policies() {
		return nil // a policy came meanwhile, and has woken Run again
	}
	if !e.removed {
		if err := e.tables.Remove(); err != nil {
			return err
		}
		e.removed = true
	}
	e.markApplied()
	return nil
}

// markApplied records that the kernel has the whole state; the caller holds e.mu.
func (e *Engine) markApplied() {
	e.applied, e.failed = e.changes, nil
	e.wakeAdmits()
}

// apply writes the difference between the state and the kernel.
func (e *Engine) apply() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.listed.pods || !e.listed.namespaces {
		return nil
	}
	switch {
	case !e.watching.settled:
		e.state.FirstListDone()
		e.watching.settled, e.reread = true, true
		fallthrough
	case e.reread:
		if err := e.readKernel(); err != nil {
			return err
		}
	}
	if e.rebuild {
		e.state.ForgetKernel()
	}
	e.reread, e.rebuild = false, false
	change := e.state.Change()
	if !change.Empty() {
		e.changed = true
		if err := e.tables.Apply(change); err != nil {
			e.rebuild = true
			return err
		}
	}
	e.state.Accept()
	e.markApplied()
	e.tightened = e.tightened || e.state.Tightens(change)
	return nil
}

// readKernel reads the tables from the kernel.
func (e *Engine) readKernel() error {
	found, err := e.tables.Read()
	if err != nil {
		return fmt.Errorf("read policies in the kernel: %w", err)
	}
	if found == nil {
		e.state.ForgetKernel()
		return nil
	}
	e.state.AssumeKernel(found)
	return nil
}

// foreignChange records that another program changed the tables or may have changed them.
func (e *Engine) foreignChange(f nft.Foreign) {
	e.mu.Lock()
	e.reread = e.reread || f.Missed
	e.rebuild = e.rebuild || !f.Missed
	e.mu.Unlock()
	if !f.Missed {
		e.cfg.Logger.Warn("another program changed the rules of network policies; they are rebuilt", "table", rules.Name, "program", f.Program)
	}
	e.wakeRun()
}

// Admit returns when the kernel has the rules of a pod of this node for the addresses that it was given, so that containers may
// be started in it. The pod is as the API has it; these addresses replace those of an earlier call. It returns an error that
// wraps ErrNotSynced or ErrNotApplied when that takes longer than 20 s. It may be called again, and costs nothing when all
// rules are in place.
func (e *Engine) Admit(ctx context.Context, pod *v1.Pod, addresses []netip.Addr) error {
	attached, ok := plan.PodOf(pod, e.cfg.NodeName)
	if pod.Spec.HostNetwork {
		return nil
	}
	if !ok { // the pod has ended in the API and will be stopped here soon
		return nil
	}
	attached.Addresses = nil
	for _, a := range addresses {
		attached.Addresses = append(attached.Addresses, a.Unmap())
	}
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	var want uint64 // the number of changes that the kernel must have applied
	for {
		e.mu.Lock()
		if e.read && !e.state.Policies() {
			e.mu.Unlock()
			return nil
		}
		if e.read && want == 0 {
			if e.state.SetAttached(attached) {
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
		e.wakeRun()
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
