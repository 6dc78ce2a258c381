package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

func TestTheLimitersMemoryIsBounded(t *testing.T) {
	now := time.Now()
	l := newLimiter(func() time.Time { return now })
	for i := range 3 * maxSources {
		now = now.Add(time.Millisecond)
		l.fail(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if len(l.sources) > maxSources {
		t.Fatalf("%d sources kept", len(l.sources))
	}
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2:3:4:5")
	for range maxFailures {
		l.fail(a)
	}
	if l.allow(a) || l.allow(b) {
		t.Error("addresses of one /64 count as several sources")
	}
	now = now.Add(failureSpan)
	if !l.allow(a) {
		t.Error("a source is locked out for ever")
	}
	if l.fail(a) {
		t.Error("logged twice within ten minutes")
	}
	if now = now.Add(failureQuiet); !l.fail(a) {
		t.Error("never logged again")
	}
}

func TestSlowReadersOfEventsAreToldSo(t *testing.T) {
	r := newRing("s")
	for range keptEvents + 10 {
		r.add(time.Now(), []*clusterpb.Event{{}})
	}
	if len(r.events) != keptEvents || r.oldest() != 10 {
		t.Fatalf("%d kept, oldest %d", len(r.events), r.oldest())
	}
	for _, c := range []struct {
		after uint64
		n     int
		lost  bool
	}{{0, keptEvents, true}, {9, keptEvents, true}, {10, keptEvents, false}, {keptEvents + 9, 1, false}, {keptEvents + 10, 0, false}, {1 << 60, 0, false}} {
		events, lost, _ := r.after(c.after)
		if len(events) != c.n || lost != c.lost {
			t.Errorf("after %d: %d, %v", c.after, len(events), lost)
		}
	}
	for range maxStreams {
		if !r.enter() {
			t.Fatal("no place")
		}
	}
	if r.enter() {
		t.Error("readers without bound")
	}
}

func TestWhoMayBeSpared(t *testing.T) {
	servers := func(voters ...string) (out []raftstore.Server) {
		for _, v := range voters {
			out = append(out, raftstore.Server{ID: v, Voter: true})
		}
		return append(out, raftstore.Server{ID: "learner"})
	}
	alive := func(ids ...string) (out []member.Member) {
		for _, id := range ids {
			out = append(out, member.Member{Meta: member.Meta{ServerID: id}, State: member.StateAlive})
		}
		return out
	}
	for _, c := range []struct {
		what    string
		servers []raftstore.Server
		gossip  []member.Member
		id      string
		harm    bool
	}{
		{"the only voter", servers("a"), alive("a"), "a", true},
		{"a learner", servers("a"), alive("a"), "learner", false},
		{"one of three", servers("a", "b", "c"), alive("a", "b", "c"), "c", false},
		{"the dead one of three", servers("a", "b", "c"), alive("a", "b"), "c", false},
		{"a live one of three with one dead", servers("a", "b", "c"), alive("a", "b"), "b", true},
		{"the dead one of two", servers("a", "b"), alive("a"), "b", false},
		{"a live one of five with two dead", servers("a", "b", "c", "d", "e"), alive("a", "b", "c"), "c", true},
		{"a dead one of five with two dead", servers("a", "b", "c", "d", "e"), alive("a", "b", "c"), "e", false},
		{"gossip has heard nothing yet", servers("a", "b", "c"), nil, "b", true},
	} {
		if err := mayLose(c.servers, c.gossip, "a", c.id); (err != nil) != c.harm || err != nil && !errors.Is(err, ErrHarm) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// fakeArchiver writes what it is told, or fails.
type fakeArchiver struct {
	mu       sync.Mutex
	fail     error
	revision int64
	torn     bool
}

// will has the next archives fail or torn, and returns how many were written.
func (f *fakeArchiver) will(fail error, torn bool) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.torn = fail, torn
	return f.revision
}

func (f *fakeArchiver) WriteArchive(_ context.Context, w io.Writer) (archive.Trailer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	fmt.Fprintln(w, f.revision)
	return archive.Trailer{Revision: f.revision}, f.fail
}

func (f *fakeArchiver) VerifyArchive(r io.Reader) (archive.Header, archive.Trailer, error) {
	var t archive.Trailer
	_, err := fmt.Fscan(r, &t.Revision)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.torn {
		t.Revision--
	}
	return archive.Header{}, t, err
}

func TestSnapshotsAreSavedOnScheduleAndPruned(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	synctest.Test(t, func(t *testing.T) {
		leads := make(chan struct{})
		var leading atomic.Bool
		a := &fakeArchiver{}
		cfg := ScheduleConfig{Archiver: a, Dir: dir, Every: 12 * time.Hour, Keep: 3, Leading: leading.Load, LeaderChanged: func() <-chan struct{} { return leads }, Logger: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- RunSchedule(ctx, cfg) }()
		files := func() int {
			synctest.Wait()
			all, err := filepath.Glob(filepath.Join(dir, "*"))
			hidden, err2 := filepath.Glob(filepath.Join(dir, ".*"))
			if err != nil || err2 != nil || len(hidden) > 0 {
				t.Fatalf("%v %v, left: %v", err, err2, hidden)
			}
			return len(all)
		}
		time.Sleep(24 * time.Hour)
		if files() != 0 {
			t.Fatal("a server that does not lead saves snapshots")
		}
		leading.Store(true)
		time.Sleep(time.Minute)
		if files() != 1 {
			t.Fatalf("%d files soon after leading", files())
		}
		time.Sleep(5 * 24 * time.Hour)
		if n := files(); n != 3 || a.will(syscall.ENOSPC, false) != 11 {
			t.Fatalf("%d files, %d saved", n, a.revision)
		}
		time.Sleep(13 * time.Hour)
		if n := files(); n != 3 || a.will(nil, true) < 12 {
			t.Fatalf("full disk: %d files", n)
		}
		time.Sleep(time.Hour)
		before := files()
		a.will(nil, false)
		time.Sleep(6 * time.Minute)
		if before != 3 || files() != 3 || newest(dir).Before(time.Now().Add(-time.Hour)) {
			t.Fatalf("after the disk: %d files, newest %v at %v", files(), newest(dir), time.Now())
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
