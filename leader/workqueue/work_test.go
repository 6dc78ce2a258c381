package workqueue

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func env() Env { return Env{Name: "test", Log: slog.New(slog.DiscardHandler)} }

func TestFailuresAreRetriedAndPanicsAreFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		l := NewLoop(env(), 2, func(context.Context, string) error {
			switch calls.Add(1) {
			case 1:
				return errors.New("not yet")
			case 2:
				panic("an object nobody expected")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Add("k")
		time.Sleep(time.Second)
		if n := calls.Load(); n != 3 {
			t.Fatalf("%d calls, want 3", n)
		}
		l.AddAfter("k", time.Hour)
		time.Sleep(59 * time.Minute)
		if n := calls.Load(); n != 3 {
			t.Fatal("called before its time")
		}
		time.Sleep(2 * time.Minute)
		if n := calls.Load(); n != 4 {
			t.Fatalf("%d calls after the delay", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestAKeyIsNeverReconciledTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy, most, calls atomic.Int32
		l := NewLoop(env(), 4, func(context.Context, string) error {
			most.Store(max(most.Load(), busy.Add(1)))
			calls.Add(1)
			time.Sleep(time.Second)
			busy.Add(-1)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		for range 10 {
			l.Add("k")
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if most.Load() != 1 || calls.Load() < 3 {
			t.Fatalf("%d at once, %d calls", most.Load(), calls.Load())
		}
		cancel()
		<-done
	})
}

func TestTogetherStopsAllWhenOneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("bad")
		waits := RunnerFunc(func(ctx context.Context) error { <-ctx.Done(); return nil })
		fails := RunnerFunc(func(context.Context) error { return bad })
		if err := Together(waits, fails).Run(t.Context()); !errors.Is(err, bad) {
			t.Fatal(err)
		}
	})
}
