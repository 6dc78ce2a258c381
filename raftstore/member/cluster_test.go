package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/raftstore/member/membertest"
)

const testCluster = "0123456789abcdef0123456789abcdef"

func testKey(n byte) []byte { return bytes.Repeat([]byte{n}, keySize) }

func serverID(n int) string { return fmt.Sprintf("%032x", n) }

// world is a gossip cluster in fake time.
type world struct {
	t      *testing.T
	net    *membertest.Network
	nodes  map[string]*simNode
	timing Timing
	saw    string // by the last condition
}

type simNode struct {
	*Gossip
	addr  string
	began time.Time
	stop  func() error // ends Run without a farewell
	logs  *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, net: membertest.New(seed), nodes: map[string]*simNode{}}
	t.Cleanup(w.stop)
	return w
}

func (w *world) stop() {
	for name := range w.nodes {
		w.kill(name)
	}
	time.Sleep(time.Minute) // memberlist's last probes end
}

func serverMeta(n int) Meta {
	return Meta{ServerID: serverID(n), Role: RoleServer, APIAddr: fmt.Sprintf("api-%d:6443", n), ClusterID: testCluster, Version: "v1", Protocol: 1, Generation: 1}
}

// start runs a member; its seeds are the addresses given.
func (w *world) start(name string, meta Meta, addr string, seeds ...string) *simNode {
	w.t.Helper()
	return w.startWith(Config{Name: name, Meta: meta, Keys: [][]byte{testKey(1)}}, addr, seeds...)
}

func (w *world) startWith(cfg Config, addr string, seeds ...string) *simNode {
	w.t.Helper()
	tr := w.net.Transport(addr)
	n := &simNode{addr: tr.Addr(), began: time.Now(), logs: &lockedBuffer{}}
	cfg.Timing = w.timing
	cfg.Transport, cfg.Seeds = tr, func() []string { return seeds }
	cfg.Logger = slog.New(slog.NewTextHandler(n.logs, nil))
	g, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	n.Gossip = g
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	n.stop = sync.OnceValue(func() error { cancel(); return <-done })
	w.nodes[cfg.Name] = n
	<-g.Ready()
	return n
}

func (w *world) kill(name string) *simNode {
	n := w.nodes[name]
	delete(w.nodes, name)
	if err := n.stop(); err != nil && !errors.Is(err, ErrNameTaken) {
		w.t.Errorf("%s: %v", name, err)
	}
	return n
}

// five starts servers s1 to s5; each knows the first alone.
func (w *world) five() {
	first := w.start("s1", serverMeta(1), "").addr
	for i := 2; i <= 5; i++ {
		w.start(fmt.Sprint("s", i), serverMeta(i), "", first)
	}
	w.until(10*time.Second, "all see all", func() bool { return w.allSee(nil) })
}

// allSee holds when every running member sees exactly the running ones alive,
// and the others in the states given, if it was there to see them go.
func (w *world) allSee(others map[string]State) bool {
	want := maps.Clone(others)
	if want == nil {
		want = map[string]State{}
	}
	for name := range w.nodes {
		want[name] = StateAlive
	}
	for _, n := range w.nodes {
		got := map[string]State{}
		for _, m := range n.Members() {
			if got[m.Name] != StateAlive {
				got[m.Name] = m.State
			}
		}
		for name := range others {
			if got[name] == "" && time.Since(n.began) < w.oldest() {
				got[name] = want[name]
			}
		}
		if !maps.Equal(got, want) {
			return false
		}
	}
	return true
}

// oldest is how long the first member has run.
func (w *world) oldest() (age time.Duration) {
	for _, n := range w.nodes {
		age = max(age, time.Since(n.began))
	}
	return age
}

func (w *world) until(limit time.Duration, what string, cond func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > limit {
			for _, n := range w.nodes {
				w.t.Logf("%s sees %v", n.cfg.Name, describe(n.Members()))
			}
			w.t.Fatalf("not within %v: %s; last seen: %s", limit, what, w.saw)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func describe(ms []Member) (out []string) {
	for _, m := range ms {
		out = append(out, fmt.Sprintf("%s=%s@%s", m.Name, m.State, m.Addr))
	}
	return out
}

func TestADeadMachineIsFailedEverywhereInThreeSeconds(t *testing.T) {
	var took []time.Duration
	for seed := range 40 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, uint64(seed))
			w.five()
			time.Sleep(time.Duration(seed) * 137 * time.Millisecond)
			w.kill("s3")
			took = append(took, w.until(6*time.Second, "s3 failed", func() bool { return w.allSee(map[string]State{"s3": StateFailed}) }))
		})
	}
	slices.Sort(took)
	t.Logf("time to failed everywhere: min %v median %v max %v", took[0], took[len(took)/2], took[len(took)-1])
	if p := took[len(took)*9/10]; p > 3*time.Second {
		t.Errorf("nine of ten within %v, want 3 s", p)
	}
}

func TestLeavingIsNotFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.five()
		for name, leave := range map[string]func(*simNode) error{
			"s4": func(n *simNode) error { return n.Leave(3 * time.Second) },
			"s5": func(n *simNode) error { return n.Depart(3 * time.Second) },
		} {
			if err := leave(w.nodes[name]); err != nil {
				t.Fatal(err)
			}
			w.kill(name)
		}
		w.until(time.Second, "s4, s5 left", func() bool { return w.allSee(map[string]State{"s4": StateLeft, "s5": StateLeft}) })
		for _, m := range w.nodes["s1"].Members() {
			if want := map[string]Leaving{"s4": Stopping, "s5": Departing}[m.Name]; m.Leaving != want {
				t.Errorf("%s leaves with intent %d, want %d", m.Name, m.Leaving, want)
			}
		}
		w.start("s4", serverMeta(4), "", w.nodes["s2"].addr) // and comes back, elsewhere
		w.until(5*time.Second, "s4 back", func() bool { return w.allSee(map[string]State{"s5": StateLeft}) })
	})
}

func TestAServerComesBackAtAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.five()
		w.kill("s3")
		time.Sleep(500 * time.Millisecond) // its death is not known yet
		m := serverMeta(3)
		m.APIAddr = "moved:6443"
		n := w.start("s3", m, "10.9.9.9:7946", w.nodes["s1"].addr)
		took := w.until(20*time.Second, "s3 at its new address", func() bool {
			for _, other := range w.nodes {
				if a, _ := other.Resolve(serverID(3)); a != "moved:6443" {
					return false
				}
			}
			return w.allSee(nil)
		})
		t.Logf("known at the new address after %v", took)
		time.Sleep(time.Minute) // no member changes its view
		if !w.allSee(nil) || !n.seat.isConfirmed() {
			t.Error("s3 is not seated")
		}
	})
}

// A restarted member must find the others although every address it knew but one
// is stale (moby/moby#33346).
func TestARestartedMemberFindsTheOthersByOneGoodSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		w.five()
		stale := []string{w.nodes["s1"].addr, w.nodes["s2"].addr, w.nodes["s4"].addr, w.nodes["s5"].addr}
		w.kill("s3")
		for i, name := range []string{"s1", "s2", "s4"} {
			w.kill(name)
			w.start(name, serverMeta(map[string]int{"s1": 1, "s2": 2, "s4": 4}[name]), fmt.Sprintf("10.7.0.%d:7946", i+1), stale[3])
			w.until(30*time.Second, name+" moved", func() bool { return w.allSee(map[string]State{"s3": StateFailed}) })
		}
		w.start("s3", serverMeta(3), "10.7.0.9:7946", stale...)
		w.until(40*time.Second, "s3 back", func() bool { return w.allSee(nil) })
	})
}

func TestTheSecondOfOneNameIsToldAndTheFirstStays(t *testing.T) {
	for what, meta := range map[string]Meta{"another server": serverMeta(77), "a copy of its disk": serverMeta(3)} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 4)
				w.five()
				seats := w.nodes["s3"]
				twin := w.start("s3", meta, "", w.nodes["s1"].addr, w.nodes["s2"].addr)
				w.nodes["s3"] = seats
				err := make(chan error, 1)
				go func() { <-time.After(60 * time.Second); err <- twin.stop() }()
				if err := <-err; !errors.Is(err, ErrNameTaken) {
					t.Errorf("the twin ended with %v, want ErrNameTaken", err)
				}
				if !w.allSee(nil) {
					t.Error("the first did not stay")
				}
				if what == "another server" && len(twin.Members()) != 1 {
					t.Errorf("the twin took part: %v", describe(twin.Members()))
				}
				for _, n := range w.nodes {
					if a, _ := n.Resolve(serverID(3)); a != "api-3:6443" || len(n.Members()) != 5 {
						t.Errorf("%s has %v", n.cfg.Name, describe(n.Members()))
					}
				}
				if logs := w.nodes["s1"].logs.String(); strings.Count(logs, "level=WARN") > 3 {
					t.Errorf("more than a line a minute:\n%s", logs)
				}
			})
		})
	}
}

func TestAWipedServerTakesItsAddressUnderANewIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5)
		w.five()
		addr := w.kill("s3").addr
		w.start("s3", serverMeta(33), addr, w.nodes["s1"].addr)
		w.until(10*time.Second, "s3 has its new identity", func() bool {
			for _, n := range w.nodes {
				if !slices.ContainsFunc(n.Members(), func(m Member) bool { return m.ServerID == serverID(33) && m.State == StateAlive }) ||
					!slices.ContainsFunc(n.Members(), func(m Member) bool { return m.ServerID == serverID(3) && m.State == StateFailed }) && n.cfg.Name != "s3" {
					return false
				}
			}
			return true
		})
	})
}

func TestHalvesFindEachOtherAfterALongCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 6)
		w.five()
		left := map[string]bool{w.nodes["s1"].addr: true, w.nodes["s2"].addr: true}
		w.net.Cut(func(from, to string) bool { return left[from] != left[to] })
		time.Sleep(30 * time.Minute)
		if alive, _ := w.nodes["s1"].Alive("s5"); alive {
			t.Error("s5 is alive across a cut")
		}
		w.net.Cut(nil)
		took := w.until(40*time.Second, "all see all again", func() bool { return w.allSee(nil) })
		t.Logf("whole again after %v", took)
	})
}

func TestALossyNetworkRaisesNoFalseAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 7)
		w.five()
		w.net.Lose(0.10, 20*time.Millisecond)
		var alarms int
		for range 900 {
			time.Sleep(time.Second)
			if !w.allSee(nil) {
				alarms++
			}
		}
		if alarms > 0 {
			t.Errorf("in %d of 900 seconds at 10%% loss somebody was thought dead", alarms)
		}
	})
}

func TestOneWayCutsDoNotEvictTheMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 8)
		w.five()
		bad := w.nodes["s2"].addr
		w.net.Cut(func(_, to string) bool { return to == bad }) // no message reaches s2
		time.Sleep(5 * time.Minute)
		for _, name := range []string{"s1", "s3", "s4", "s5"} {
			for _, m := range w.nodes[name].Members() {
				if m.Name != "s2" && m.State != StateAlive {
					t.Errorf("%s thinks %s is %s", name, m.Name, m.State)
				}
			}
		}
		w.net.Cut(nil)
		w.until(40*time.Second, "s2 is back", func() bool { return w.allSee(nil) })
	})
}

func TestAtRestAMemberSendsFivePacketsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 9)
		w.five()
		time.Sleep(time.Minute)
		before := w.net.Packets()
		time.Sleep(10 * time.Minute)
		rate := float64(w.net.Packets()-before) / 600 / 5
		t.Logf("%.2f packets sent a second and member", rate)
		if rate > 5.1 {
			t.Errorf("%.2f packets a second", rate)
		}
	})
}

func TestForgetDropsWhoFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10)
		w.five()
		w.kill("s5")
		time.Sleep(25 * time.Hour)
		if !w.allSee(map[string]State{"s5": StateFailed}) {
			t.Error("a server that failed is not listed any more")
		}
		if !w.nodes["s1"].Forget(serverID(5)) || w.nodes["s1"].Forget(serverID(4)) {
			t.Error("Forget drops who failed and nobody else")
		}
	})
}

func TestKeysRotateWithoutASplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 11)
		w.five()
		w.net.Lose(0.05, 5*time.Millisecond)
		keys := map[KeyID][]byte{Fingerprint(testKey(1)): testKey(1), Fingerprint(testKey(2)): testKey(2)}
		ring := Ring{Primary: Fingerprint(testKey(1)), Keys: []KeyID{Fingerprint(testKey(1))}}
		target, steps := Fingerprint(testKey(2)), 0
		for ; len(ring.Keys) > 1 || ring.Primary != target; steps++ {
			if steps > 600 {
				t.Fatal("the rotation does not end")
			}
			var wait string
			ring, wait = PlanRotation(ring, target, w.nodes["s1"].Members(), time.Now())
			for _, n := range w.nodes { // one after the other, seconds apart
				time.Sleep(300 * time.Millisecond)
				var all [][]byte
				for _, id := range ring.Keys {
					all = append(all, keys[id])
				}
				if err := n.Rekey(keys[ring.Primary], all); err != nil {
					t.Fatal(err)
				}
				if !w.allSee(nil) {
					t.Fatalf("split in step %d (%s)", steps, wait)
				}
			}
		}
		time.Sleep(time.Minute)
		if !w.allSee(nil) {
			t.Error("split after the rotation")
		}
		old := w.startWith(Config{Name: "old", Meta: serverMeta(9), Keys: [][]byte{testKey(1)}}, "", w.nodes["s1"].addr)
		time.Sleep(time.Minute)
		if len(old.Members()) != 1 {
			t.Error("the old key still opens")
		}
		w.kill("old")
	})
}

func TestResolveFallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 12)
		w.five()
		g := w.nodes["s1"]
		g.Remember(map[string]string{serverID(5): "old:1", serverID(8): "told:1"})
		check := func(id int, want string) {
			t.Helper()
			if got, _ := g.Resolve(serverID(id)); got != want {
				t.Errorf("server %d is at %q, want %q", id, got, want)
			}
		}
		check(5, "api-5:6443")
		check(8, "told:1")
		w.kill("s5")
		w.until(6*time.Second, "s5 failed", func() bool { return w.allSee(map[string]State{"s5": StateFailed}) })
		check(5, "api-5:6443")
		if err := w.nodes["s2"].UpdateMeta(func(m *Meta) { m.APIAddr = "new:2" }); err != nil {
			t.Fatal(err)
		}
		w.until(3*time.Second, "s2's news", func() bool { a, _ := g.Resolve(serverID(2)); return a == "new:2" })
		if err := w.nodes["s2"].UpdateMeta(func(m *Meta) { m.ServerID = serverID(3) }); !errors.Is(err, ErrMeta) {
			t.Errorf("a new identity: %v", err)
		}
	})
}
