package raftstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/balsahq/balsa/raftstore/simnet"
)

// traits are what a seed decides beside the faults.
type traits struct {
	servers, spares int
	clients         int
	slowClock       int // which server's clock is slow, -1 for none
	link            simnet.Link
	patience        time.Duration // of the transport
	think           time.Duration // most time between two requests of a client
	horizon         time.Duration // how long faults happen
	snapshotEntries int64
	trailing        uint64 // log kept behind a snapshot
	compacts        bool   // history is compacted, so that watchers may lose their place
}

func traitsOf(rng *rand.Rand, servers int) traits {
	tr := traits{servers: servers, clients: 5, slowClock: -1, horizon: 5 * time.Second, think: 120 * time.Millisecond,
		patience: 500 * time.Millisecond, snapshotEntries: 1 << 40, trailing: 1024}
	if rng.IntN(3) == 0 {
		tr.slowClock = rng.IntN(servers)
	}
	tr.link = simnet.Link{MinDelay: 100 * time.Microsecond, MaxDelay: 2 * time.Millisecond}
	switch rng.IntN(4) {
	case 0:
		tr.link.MaxDelay = 30 * time.Millisecond
	case 1:
		tr.link.Late, tr.link.LateDelay = 0.02, 400*time.Millisecond
	}
	if rng.IntN(3) == 0 {
		tr.link.Loss = 0.005 * rng.Float64()
	}
	if rng.IntN(2) == 0 {
		tr.patience = 150 * time.Millisecond
	}
	if rng.IntN(2) == 0 {
		tr.link.Twice = 0.3
	}
	if rng.IntN(2) == 0 {
		tr.snapshotEntries, tr.trailing = int64(20+rng.IntN(60)), uint64(24+rng.IntN(24))
	}
	if rng.IntN(3) == 0 {
		tr.spares = 1
	}
	tr.compacts = rng.IntN(4) == 0
	return tr
}

// faultKind is what can go wrong, or be done to a cluster.
type faultKind int

const (
	faultCrash faultKind = iota
	faultStop
	faultPause
	faultIsolate
	faultDeafen // hears nothing, is heard
	faultMute   // is not heard, hears
	faultCut    // between two servers
	faultHalve  // some from the rest
	faultLoss
	faultLate
	faultFull
	faultSlowDisk
	faultTransfer
	faultSnapshot
	faultGrow
	faultShrink
	faultCompact
	faultKinds
)

var faultNames = [...]string{"crash", "stop", "pause", "isolate", "deafen", "mute", "cut", "halve", "loss", "late", "full disk", "slow disk", "transfer", "snapshot", "grow", "shrink", "compact"}

// fault is one entry of the plan, a function of the seed alone.
type fault struct {
	at, long time.Duration
	kind     faultKind
	a, b     int // servers; a of -1 is the one that leads then
	mask     int // halve: the servers on one side
}

func (f fault) String() string {
	return fmt.Sprintf("%s a=%d b=%d mask=%b for %v", faultNames[f.kind], f.a, f.b, f.mask, f.long)
}

// planOf decides when what goes wrong. Each seed draws from some kinds only, so
// that rare ones meet each other.
func planOf(rng *rand.Rand, tr traits) []fault {
	var kinds []faultKind
	for k := range faultKinds {
		if rng.IntN(5) < 2 && (k != faultCompact || tr.compacts) && (k != faultGrow && k != faultShrink || tr.spares > 0) {
			kinds = append(kinds, k)
		}
	}
	if len(kinds) == 0 {
		kinds = []faultKind{faultCrash, faultIsolate}
	}
	var out []fault
	every := time.Duration(80+rng.IntN(400)) * time.Millisecond
	for at := 400 * time.Millisecond; at < tr.horizon; at += time.Duration(rng.Int64N(int64(2 * every))) {
		f := fault{at: at, kind: kinds[rng.IntN(len(kinds))], long: time.Duration(20+rng.IntN(1200)) * time.Millisecond, a: rng.IntN(tr.servers), mask: 1 + rng.IntN(1<<tr.servers-2)}
		f.b = (f.a + 1 + rng.IntN(tr.servers-1)) % tr.servers
		if rng.IntN(5) < 2 {
			f.a = -1
		}
		out = append(out, f)
	}
	return out
}

// play carries out the plan.
func (w *world) play(plan []fault) {
	for _, f := range plan {
		if d := f.at - w.h.now(); d > 0 {
			time.Sleep(d)
		}
		s := w.target(f.a)
		if s == nil {
			continue
		}
		w.h.logf("fault: %v at %s", f, short(s.id))
		w.zombies.Go(func() { w.inflict(f, s) })
	}
}

func (w *world) target(a int) *server {
	if a >= 0 {
		return w.servers[a]
	}
	return w.leader()
}

// inflict does one thing and undoes it when its time is over.
func (w *world) inflict(f fault, s *server) {
	switch f.kind {
	case faultCrash:
		w.crash(s)
		w.tell(f, s)
		time.Sleep(f.long)
		w.start(s)
	case faultStop:
		w.shutdown(s)
		time.Sleep(f.long / 4)
		w.start(s)
	case faultPause:
		w.net.Pause(s.id)
		w.tell(f, s) // which is not true
		time.Sleep(f.long)
		w.net.Resume(s.id)
	case faultIsolate, faultDeafen, faultMute, faultCut, faultHalve:
		w.disconnect(f, s, true)
		time.Sleep(f.long)
		w.disconnect(f, s, false)
	case faultLoss:
		w.links(f, func(l *simnet.Link) { l.Loss = 0.3 }, func(l *simnet.Link) { l.Loss = w.traits.link.Loss })
	case faultLate:
		w.links(f, func(l *simnet.Link) { l.Late, l.LateDelay = 0.2, f.long },
			func(l *simnet.Link) { l.Late, l.LateDelay = w.traits.link.Late, w.traits.link.LateDelay })
	case faultFull:
		s.disk.Refuse(syscall.ENOSPC)
		time.Sleep(f.long)
		s.disk.Refuse(nil)
	case faultSlowDisk:
		s.disk.Slow(20*time.Millisecond, 150*time.Millisecond)
		time.Sleep(f.long)
		s.disk.Slow(100*time.Microsecond, 2*time.Millisecond)
	default:
		w.operate(f, s)
	}
}

// tell lets those in the fault's mask believe that the process of s has ended.
func (w *world) tell(f fault, s *server) {
	for i, other := range w.servers {
		if r := w.runOf(other); r != nil && other != s && f.mask>>i&1 == 1 {
			r.store.PeerEnded(s.id)
		}
	}
}

// links changes every link for a while.
func (w *world) links(f fault, worse, better func(*simnet.Link)) {
	each := func(change func(*simnet.Link)) {
		for _, a := range w.servers {
			for _, b := range w.servers {
				if a != b {
					w.net.ChangeLink(a.id, b.id, change)
				}
			}
		}
	}
	each(worse)
	time.Sleep(f.long)
	each(better)
}

// disconnect cuts the links a fault names, or restores them.
func (w *world) disconnect(f fault, s *server, cut bool) {
	side := func(x *server) bool {
		for i := range w.servers {
			if w.servers[i] == x {
				return f.mask>>i&1 == 1
			}
		}
		return false
	}
	for _, a := range w.servers {
		for _, b := range w.servers {
			hit := a != b
			switch f.kind {
			case faultIsolate:
				hit = hit && (a == s || b == s)
			case faultDeafen:
				hit = hit && b == s
			case faultMute:
				hit = hit && a == s
			case faultCut:
				other := w.servers[f.b]
				hit = hit && (a == s && b == other || a == other && b == s)
			case faultHalve:
				hit = hit && side(a) != side(b)
			}
			if hit {
				w.net.ChangeLink(a.id, b.id, func(l *simnet.Link) { l.Cut = cut })
			}
		}
	}
}

// operate does what an operator does, at the leader.
func (w *world) operate(f fault, s *server) {
	do := func(what string, s *server, fn func(context.Context, *run) error) bool {
		_, err := ask(w, s, 3*time.Second, func(ctx context.Context, r *run) (struct{}, error) { return struct{}{}, fn(ctx, r) })
		w.h.logf("%s at %s: %v", what, short(s.id), err)
		return err == nil
	}
	boss := w.leader()
	if boss == nil {
		return
	}
	switch f.kind {
	case faultSnapshot:
		do("snapshot", s, func(_ context.Context, r *run) error { return r.store.Snapshot() })
	case faultCompact:
		do("compact", boss, func(ctx context.Context, r *run) error {
			return r.store.Compact(ctx, r.store.View().Revision()-20)
		})
	case faultTransfer:
		to := ""
		if f.b%2 == 0 {
			to = w.servers[f.b].id
		}
		do("transfer", boss, func(ctx context.Context, r *run) error { return r.store.TransferLeadership(ctx, to) })
	case faultGrow:
		x := w.servers[len(w.servers)-1]
		w.start(x)
		if do("add learner", boss, func(ctx context.Context, r *run) error { return r.store.AddLearner(ctx, x.id) }) {
			time.Sleep(f.long)
			if boss = w.leader(); boss != nil {
				do("promote", boss, func(ctx context.Context, r *run) error { return r.store.Promote(ctx, x.id) })
			}
		}
	case faultShrink:
		x := w.servers[len(w.servers)-1]
		if f.b%2 == 0 {
			do("demote", boss, func(ctx context.Context, r *run) error { return r.store.Demote(ctx, x.id) })
			return
		}
		do("remove", boss, func(ctx context.Context, r *run) error { return r.store.Remove(ctx, x.id) })
	}
}

// settle ends all faults and waits until the cluster is whole again: every
// server has applied the same and holds the same.
func (w *world) settle() {
	w.net.Heal()
	for _, a := range w.servers {
		for _, b := range w.servers {
			w.net.SetLink(a.id, b.id, simnet.Link{MinDelay: 100 * time.Microsecond, MaxDelay: 2 * time.Millisecond})
		}
	}
	for _, s := range w.servers {
		s.disk.Refuse(nil)
		s.disk.Slow(100*time.Microsecond, 2*time.Millisecond)
	}
	w.h.logf("healed")
	deadline := time.Now().Add(60 * time.Second)
	for {
		for _, s := range w.servers {
			if !s.join || s.runs > 0 {
				w.start(s) // one whose disk was full did not start
			}
		}
		why := w.unsettled()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			w.h.failf("60 s after all faults ended: %s", why)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// unsettled says what is missing to a cluster that is whole.
func (w *world) unsettled() string {
	boss := w.leader()
	if boss == nil {
		return "nobody leads"
	}
	lead := w.runOf(boss)
	members, err := lead.store.Servers()
	if err != nil {
		return err.Error()
	}
	in := make(map[string]bool)
	for _, m := range members {
		in[m.ID] = true
	}
	if n := len(lead.store.Leases()); n > 0 {
		return fmt.Sprintf("%d leases have not ended", n)
	}
	index, sum := lead.store.Hash()
	for _, s := range w.servers {
		if !in[s.id] {
			continue
		}
		r := w.runOf(s)
		if r == nil {
			return short(s.id) + " is down"
		}
		i, h := r.store.Hash()
		if i != index {
			return fmt.Sprintf("%s has applied %d, the leader %d", short(s.id), i, index)
		}
		if h != sum {
			if again, _ := r.store.Hash(); again == i {
				w.h.failf("after entry %d %s has another state than the leader %s: %s", i, short(s.id), short(boss.id), sameState(r.store.View(), lead.store.View()))
				return "different states"
			}
		}
	}
	return ""
}
