package tunnel

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balsahq/balsa/control/tunnel/mux"
)

// judging is a world whose Tunnel judges quickly; others is what other servers hear.
func judging(t *testing.T, others *atomic.Pointer[[]string]) *world {
	t.Helper()
	others.Store(&[]string{})
	w := newWorld(t, func(c *Config) {
		c.Beat, c.Return, c.AskAgain = 20*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
		c.Elsewhere = func(context.Context, []string) []string { return *others.Load() }
	})
	ctx, stop := context.WithCancel(context.Background())
	var over sync.WaitGroup
	over.Go(func() { _ = w.tunnel.Run(ctx) })
	t.Cleanup(func() { stop(); over.Wait() })
	return w
}

func (w *world) alive(name string) bool {
	alive, known := w.tunnel.Alive(name)
	return alive && known
}

func TestANodeWhoseConnectionEndsIsDeadUnlessAnotherServerHearsIt(t *testing.T) {
	var others atomic.Pointer[[]string]
	w := judging(t, &others)
	if _, known := w.tunnel.Alive("a"); known {
		t.Fatal("a node that never connected is known")
	}
	stop, _ := w.node("a", saying("a"))
	w.node("b", saying("b"))
	if !w.alive("a") || !slices.Equal(w.tunnel.Heard([]string{"a", "b", "c"}), []string{"a", "b"}) {
		t.Fatal("a connected node is not heard")
	}
	others.Store(&[]string{"a"})
	changed := w.tunnel.Changed()
	stop()
	w.eventually("it is not heard here", func() bool { return len(w.tunnel.Heard([]string{"a"})) == 0 })
	asked := make(chan struct{})
	w.tunnel.mu.Lock() // wait until the others have been asked, and have said that they hear it
	first := w.tunnel.presences["a"].due
	w.tunnel.mu.Unlock()
	go func() {
		defer close(asked)
		w.eventually("the others are asked", func() bool {
			w.tunnel.mu.Lock()
			defer w.tunnel.mu.Unlock()
			return w.tunnel.presences["a"].due.After(first)
		})
	}()
	<-asked
	if !w.alive("a") {
		t.Error("a node that another server hears is dead")
	}
	others.Store(&[]string{})
	w.eventually("no server hears it: it is dead", func() bool { return !w.alive("a") })
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	if !w.alive("b") {
		t.Error("another node is dead, too")
	}
	w.node("a", saying("a"))
	if !w.alive("a") {
		t.Error("it has come back and is dead")
	}
}

// TestANodeThatSaysNothingIsDead: its machine has lost power, so nothing ends its connection.
func TestANodeThatSaysNothingIsDead(t *testing.T) {
	var others atomic.Pointer[[]string]
	w := judging(t, &others)
	c, err := w.shake(w.certificate("a"))
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("it has died while it was connected", func() bool { _, known := w.tunnel.Alive("a"); return known && !w.alive("a") })
	if w.tunnel.node("a") == nil {
		t.Error("the verdict has ended its connection")
	}
	ctx, stop := context.WithCancel(context.Background())
	var over sync.WaitGroup
	over.Go(func() { _ = mux.Carry(ctx, mux.CarryConfig{Conn: c, Dial: saying("a")}) })
	t.Cleanup(func() { stop(); over.Wait() })
	w.eventually("it answers on the same connection: it is alive", func() bool { return w.alive("a") })
}
