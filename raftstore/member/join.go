package member

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// seat is what other members' tables said about this member's name and address.
type seat struct {
	mu        sync.Mutex
	confirmed bool      // some member lists this one with its identity and address
	disputed  time.Time // since when another live member has this name; zero: none has
	by        string    // that member
	members   int
	changed   chan struct{} // one token
}

func (s *seat) confirm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed, s.disputed = true, time.Time{}
	s.poke()
}

// dispute notes that another member has the name, and reports whether it matters: a member that was confirmed stays.
func (s *seat) dispute(name, addr string, members int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.confirmed {
		return false
	}
	if s.disputed.IsZero() {
		s.disputed = time.Now()
	}
	s.by, s.members = name+" at "+addr, members
	s.poke()
	return true
}

// undisputed notes that a table did not list another member with the name: that member is dead.
func (s *seat) undisputed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disputed = time.Time{}
}

func (s *seat) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// err returns ErrNameTaken when the dispute has lasted so long that the other member would have been found dead, if it were.
func (s *seat) err(t Timing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disputed.IsZero() || time.Since(s.disputed) < t.detection(s.members) {
		return nil
	}
	return fmt.Errorf("%w: %s is alive", ErrNameTaken, s.by)
}

// pauseMax returns the longest pause between attempts to join.
func (s *seat) pauseMax() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disputed.IsZero() {
		return joinPauseMax
	}
	return seatPauseMax
}

func (s *seat) isConfirmed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

const (
	joinPauseMin = 250 * time.Millisecond
	joinPauseMax = 15 * time.Second
	// seatPauseMax bounds the pause until another member lists this one with its address.
	seatPauseMax = 2 * time.Second
)

// join connects this member with the others: at start, whenever it is alone, while no other member lists it, and from time to time while
// members are failed, which may be the other side of a partition. At rest it waits for events.
func (g *Gossip) join(ctx context.Context) error {
	pause := joinPauseMin
	for {
		changed := g.Changed()
		alive, failed := g.table.others(g.cfg.Name)
		wait := time.Duration(-1)
		switch {
		case alive == 0:
			g.tryJoin(ctx, append(g.seeds(ctx), failed...))
			wait, pause = pause, min(2*pause, g.seat.pauseMax())
		case !g.seat.isConfirmed():
			g.tryJoin(ctx, append(g.seeds(ctx), g.someAlive()...))
			wait, pause = pause, min(2*pause, seatPauseMax)
		case len(failed) > 0:
			pause = joinPauseMin
			wait = g.cfg.Timing.Reconnect
		default:
			pause = joinPauseMin
		}
		if err := g.seat.err(g.cfg.Timing); err != nil {
			return err
		}
		waited, err := g.await(ctx, changed, wait, alive == 0)
		if err != nil {
			return nil
		}
		if waited && alive > 0 && len(failed) > 0 && g.seat.isConfirmed() {
			g.tryJoin(ctx, []string{failed[rand.IntN(len(failed))]})
		}
	}
}

// await returns true when wait is over, false when the table changed, and an error when ctx ends. A negative wait has no end. A change does
// not shorten the pause after an attempt that failed, unless this member is no longer alone, or alone now.
func (g *Gossip) await(ctx context.Context, changed <-chan struct{}, wait time.Duration, alone bool) (bool, error) {
	var timer <-chan time.Time
	if wait >= 0 {
		wait += time.Duration(rand.Int64N(int64(wait)/4 + 1))
		timer = time.After(wait)
	}
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-timer:
			return true, nil
		case <-g.seat.changed:
			if timer == nil {
				return false, nil
			}
		case <-changed:
			if alive, failed := g.table.others(g.cfg.Name); timer == nil && len(failed) > 0 || alone && alive > 0 || !alone && alive == 0 {
				return false, nil
			}
			changed = g.Changed()
		}
	}
}

// someAlive returns the addresses of at most two live members, chosen at random.
func (g *Gossip) someAlive() []string {
	var out []string
	for _, m := range g.Members() {
		if m.State == StateAlive && m.Name != g.cfg.Name {
			out = append(out, m.Addr)
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(2, len(out))]
}

// tryJoin exchanges tables with each address once.
func (g *Gossip) tryJoin(ctx context.Context, addrs []string) {
	own := g.Addr()
	slices.Sort(addrs)
	for _, addr := range slices.Compact(addrs) {
		if addr == own || ctx.Err() != nil {
			continue
		}
		g.life.RLock()
		list, left := g.list, g.left
		g.life.RUnlock()
		if list == nil || left {
			return
		}
		if _, err := list.Join([]string{addr}); err != nil && ctx.Err() == nil {
			g.log.once(slog.LevelDebug, "join\x00"+addr, "gossip: cannot join", "addr", addr, "err", err)
		}
	}
}

// maxSeeds bounds the addresses tried in one attempt.
const maxSeeds = 64

// seeds returns the ip:port addresses of Config.Seeds.
func (g *Gossip) seeds(ctx context.Context) []string {
	if g.cfg.Seeds == nil {
		return nil
	}
	var out []string
	for _, s := range g.cfg.Seeds() {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = s, strconv.Itoa(DefaultPort)
		}
		if ip, err := netip.ParseAddr(host); err == nil {
			out = append(out, net.JoinHostPort(ip.String(), port))
			continue
		}
		look, cancel := context.WithTimeout(ctx, g.cfg.Timing.Stream)
		ips, err := net.DefaultResolver.LookupNetIP(look, "ip", host)
		cancel()
		if err != nil {
			g.log.once(slog.LevelWarn, "seed\x00"+host, "gossip: cannot resolve a seed, it is tried again", "seed", s, "err", err)
		}
		for _, ip := range ips {
			out = append(out, net.JoinHostPort(ip.Unmap().String(), port))
		}
	}
	if len(out) > maxSeeds {
		rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		out = out[:maxSeeds]
	}
	return out
}
