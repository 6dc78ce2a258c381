package workqueue

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
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
		if err := RunAll(waits, fails).Run(t.Context()); !errors.Is(err, bad) {
			t.Fatal(err)
		}
	})
}

func TestQueuesShowMetricsByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := env()
		e.Name = "measured"
		l := NewLoop(e, 1, func(context.Context, string) error {
			time.Sleep(time.Second)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Add("a")
		l.Add("b")
		synctest.Wait()
		if got := queueMetric(t, "workqueue_depth"); got.GetGauge().GetValue() != 1 {
			t.Errorf("depth %v while one of two keys is worked on", got)
		}
		time.Sleep(3 * time.Second)
		if got := queueMetric(t, "workqueue_work_duration_seconds").GetHistogram(); got.GetSampleCount() != 2 || got.GetSampleSum() != 2 {
			t.Errorf("work %v", got)
		}
		cancel()
		<-done
		l.Add("late") // the term is over
		if got := queueMetric(t, "workqueue_depth"); got.GetGauge().GetValue() != 0 {
			t.Errorf("depth %v after the end", got)
		}
	})
}

// queueMetric returns what is shown of the queue "measured".
func queueMetric(t *testing.T, name string) *dto.Metric {
	t.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == "measured" {
				return m
			}
		}
	}
	t.Fatalf("no %s", name)
	return nil
}
