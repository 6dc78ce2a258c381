package wallclock

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func TestEverybodyHearsOfEachChange(t *testing.T) {
	set, told := make(chan error), make(chan int, 4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := New(slog.New(slog.DiscardHandler))
	w.next = func() (func() error, func() error, error) {
		wait := func() error {
			select {
			case err := <-set:
				return err
			case <-ctx.Done():
				return context.Canceled
			}
		}
		return wait, func() error { return nil }, nil
	}
	for i := range 2 {
		w.Notify(func() { told <- i })
	}
	var running errgroup.Group
	running.Go(func() error { return w.Run(ctx) })
	for range 2 {
		set <- nil
		for i := range 2 {
			if got := <-told; got != i {
				t.Fatalf("told %d, want %d", got, i)
			}
		}
	}
	cancel()
	if err := running.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestTheKernelsTimerWaitsAndEnds(t *testing.T) {
	wait, end, err := openTimer()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- wait() }()
	select {
	case err := <-ended:
		t.Fatalf("nobody set the clock, and the wait is over: %v", err)
	default:
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatal("a closed timer says that the clock was set")
	}
}

func TestWithoutTimersNothingEnds(t *testing.T) {
	w := New(slog.New(slog.DiscardHandler))
	w.next = func() (func() error, func() error, error) { return nil, nil, errors.New("no such call") }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAJumpIsMeasuredAgainstTimePassed(t *testing.T) {
	before := time.Now()
	if got := jumped(before, before.Add(time.Hour)); got != 0 {
		t.Errorf("an hour that passed is a jump of %v", got)
	}
}
