package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var rules = Rules{
	Kubelet:  netip.MustParseAddrPort("127.0.0.1:10250"),
	Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:244::/48")},
	Own:      []netip.Addr{netip.MustParseAddr("192.168.1.10")},
}

func TestWhatServersMayHaveThisNodeConnectTo(t *testing.T) {
	for target, want := range map[string]string{
		"kubelet":                  "127.0.0.1:10250",
		"10.244.1.7:80":            "10.244.1.7:80",
		"[::ffff:10.244.1.7]:80":   "10.244.1.7:80",
		"10.96.0.1:443":            "10.96.0.1:443",
		"[fd00:244::7]:8080":       "[fd00:244::7]:8080",
		"192.168.1.10:9100":        "192.168.1.10:9100", // its own address
		"192.168.1.1:22":           "",                  // its LAN
		"169.254.169.254:80":       "",                  // a cloud's metadata
		"127.0.0.1:22":             "",
		"127.0.0.1:10250":          "", // by its name or not at all
		"[::1]:22":                 "",
		"[fe80::1%eth0]:80":        "",
		"0.0.0.0:80":               "",
		"10.244.1.7:0":             "",
		"10.244.1.7":               "",
		"10.244.1.7:http":          "",
		"web.default.svc:80":       "", // no name is resolved
		"10.245.0.1:80":            "",
		"":                         "",
		"kubelet:1":                "",
		strings.Repeat("1", 10000): "",
	} {
		got, err := rules.Resolve(target)
		if want == "" {
			if err == nil {
				t.Errorf("%.40q is connected to as %s", target, got)
			}
			continue
		}
		if err != nil || got.String() != want {
			t.Errorf("%q: %s, %v; want %s", target, got, err, want)
		}
	}
}

func TestReportsAreConnectedToByName(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	with := rules
	with.Metrics = func() net.Conn { return there }
	if c, err := with.Dial(t.Context(), "resource-metrics"); err != nil || c != there {
		t.Errorf("%v, %v", c, err)
	}
	if c, err := rules.Dial(t.Context(), "resource-metrics"); err == nil {
		t.Errorf("a node without reports connects to %v", c)
	}
}

// net2 is a network of pipes in which servers come and go.
type net2 struct {
	up    atomic.Bool
	dials atomic.Int32
}

func (n *net2) dial(context.Context, string, string) (net.Conn, error) {
	n.dials.Add(1)
	if !n.up.Load() {
		return nil, errors.New("connection refused")
	}
	a, b := net.Pipe()
	go io.Copy(io.Discard, b)
	return a, nil
}

func agent(t *testing.T, n *net2, carry func(ctx context.Context, c net.Conn, welcome func()) error) *Agent {
	t.Helper()
	a, err := New(Config{
		Rules: rules, Dial: n.dial,
		Connect: func(_ context.Context, c net.Conn) (net.Conn, error) { return c, nil },
		Carry: func(ctx context.Context, c net.Conn, _ func(context.Context, string) (net.Conn, error), welcome func()) error {
			defer c.Close()
			return carry(ctx, c, welcome)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func run(a *Agent) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	return func() { cancel(); <-done }
}

func TestAConnectionToEachServerOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n net2
		n.up.Store(true)
		var open atomic.Int32
		a := agent(t, &n, func(ctx context.Context, _ net.Conn, welcome func()) error {
			welcome()
			open.Add(1)
			defer open.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		})
		stop := run(a)
		defer stop()
		check := func(what string, want int32) {
			t.Helper()
			synctest.Wait()
			if got := open.Load(); got != want {
				t.Errorf("%s: %d connections, want %d", what, got, want)
			}
		}
		list := []Server{{"1", "a:1", true}, {"2", "b:1", true}, {"3", "c:1", true}}
		a.Update(list)
		check("three servers", 3)
		a.Update(list[:2])
		check("one left", 2)
		a.Update([]Server{{"1", "elsewhere:1", true}, list[1]})
		check("one moved", 2)
		if got := n.dials.Load(); got != 4 {
			t.Errorf("%d dials, want 4", got)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if got := n.dials.Load(); got != 4 {
			t.Errorf("%d dials after an idle day, want 4", got)
		}
	})
}

func TestABrokenConnectionIsMadeAgainAtOnceAndADeadServerIsNotPestered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n net2
		n.up.Store(true)
		a := agent(t, &n, func(ctx context.Context, c net.Conn, welcome func()) error {
			welcome()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Hour):
				return io.ErrUnexpectedEOF
			}
		})
		stop := run(a)
		defer stop()
		a.Update([]Server{{"1", "a:1", true}})
		time.Sleep(time.Hour + 300*time.Millisecond)
		synctest.Wait()
		if got := n.dials.Load(); got != 2 {
			t.Errorf("%d dials 300 ms after the connection broke, want 2", got)
		}
		time.Sleep(10 * time.Minute)
		n.up.Store(false)
		time.Sleep(50 * time.Minute) // it breaks again
		synctest.Wait()
		before := n.dials.Load()
		time.Sleep(time.Hour)
		if got := n.dials.Load() - before; got < 3600/31 || got > 3600/15 {
			t.Errorf("%d dials to a dead server in an hour", got)
		}
		// The news that it is back is worth an attempt.
		n.up.Store(true)
		before = n.dials.Load()
		a.Update([]Server{{"1", "a:1", false}})
		synctest.Wait()
		a.Update([]Server{{"1", "a:1", true}})
		synctest.Wait()
		if got := n.dials.Load() - before; got != 1 {
			t.Errorf("%d dials at once when the server is back, want 1", got)
		}
	})
}

type unwanted struct{ error }

func (unwanted) Unwanted() bool { return true }

func TestAServerThatDoesNotWantItIsAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n net2
		n.up.Store(true)
		a := agent(t, &n, func(_ context.Context, _ net.Conn, welcome func()) error {
			welcome()
			return unwanted{errors.New("no")}
		})
		stop := run(a)
		defer stop()
		a.Update([]Server{{"1", "a:1", true}})
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := n.dials.Load(); got < 25 || got > 75 {
			t.Errorf("%d times in an hour", got)
		}
	})
}
