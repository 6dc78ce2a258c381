package fault

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// ErrPanic is wrapped by the error that a contained panic becomes.
var ErrPanic = errors.New("panic")

// Panic is a contained panic as an error.
type Panic struct {
	Unit  string // the unit that panicked: "leader/scheduler"
	Value any    // the argument of panic
	Stack []byte
}

// Error returns one line without the stack, which has been logged.
func (p *Panic) Error() string { return fmt.Sprintf("panic in %s: %v", p.Unit, p.Value) }

// Unwrap implements errors.Is for ErrPanic.
func (p *Panic) Unwrap() error { return ErrPanic }

// firstPause and lastPause bound the pause before Keep starts its work again. It doubles with each panic. If the work
// ran for calm since its last panic, the pause is firstPause again.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = time.Minute
	calm       = 10 * time.Minute
)

// retryPauses are the pauses between the attempts of Retry.
var retryPauses = []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}

var (
	logger atomic.Pointer[slog.Logger]

	mu     sync.Mutex
	counts = map[string]uint64{} // by unit; units are constants of the code, so the map stays small
)

// LogTo sets the logger of panics. The default is slog.Default.
func LogTo(l *slog.Logger) { logger.Store(l) }

// Counts returns how many panics were contained so far, by unit.
func Counts() map[string]uint64 {
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(counts)
}

// Caught counts and logs a panic that the caller has recovered, and returns it as an error. Call it in the deferred
// function itself, so that the stack is complete. unit must be a constant, because it is the value of a metric's label.
func Caught(unit string, value any) *Panic {
	p := &Panic{Unit: unit, Value: value, Stack: debug.Stack()}
	mu.Lock()
	counts[unit]++
	mu.Unlock()
	log := logger.Load()
	if log == nil {
		log = slog.Default()
	}
	log.Error("a panic was contained; only this unit of work has ended", "unit", unit, "panic", fmt.Sprint(value), "stack", string(p.Stack))
	return p
}

// Contain runs work and returns its error. A panic of work is counted, logged and returned as a *Panic.
func Contain(unit string, work func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = Caught(unit, r)
		}
	}()
	return work()
}

// Contained returns work with its panics contained, for goroutines and timers that return no error.
func Contained(unit string, work func()) func() {
	return func() { _ = Do(unit, work) }
}

// ContainedErr returns work with its panics turned into errors, for groups of goroutines that join errors.
func ContainedErr(unit string, work func() error) func() error {
	return func() error { return Contain(unit, work) }
}

// Do runs work and returns nil, or its panic as a *Panic.
func Do(unit string, work func()) error {
	return Contain(unit, func() error { work(); return nil })
}

// Retry runs work. After a panic it tries up to three times more within about a second, on the caller's goroutine. It
// is for events that are delivered once and in order. It returns the last panic, or nil.
func Retry(unit string, work func()) error {
	err := Do(unit, work)
	for _, pause := range retryPauses {
		if err == nil {
			return nil
		}
		time.Sleep(pause)
		err = Do(unit, work)
	}
	return err
}

// Keep runs work until work returns, or panics after ctx has ended. After any other panic it runs work again, with
// back-off; work has to be able to start again.
func Keep(ctx context.Context, unit string, work func(context.Context) error) error {
	pause := firstPause
	for {
		began := time.Now()
		err := Contain(unit, func() error { return work(ctx) })
		if !errors.Is(err, ErrPanic) || ctx.Err() != nil {
			return err
		}
		if time.Since(began) > calm {
			pause = firstPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause = min(2*pause, lastPause)
	}
}

// KeepDo is Keep for work without an error.
func KeepDo(ctx context.Context, unit string, work func(context.Context)) {
	_ = Keep(ctx, unit, func(ctx context.Context) error { work(ctx); return nil })
}

// Fatal is deferred by code that changes state which must stay consistent. A panic that passes through it ends the
// process, even if a caller would recover it.
func Fatal(unit string) {
	if r := recover(); r != nil {
		text := fmt.Sprintf("fault: %s must not go on after a panic: %v\n%s", unit, r, debug.Stack())
		go panic(text) // on a new goroutine, where no deferred function can recover it
		select {}
	}
}

// Handler contains the panics of an HTTP handler. It aborts the request, so that the client does not take half of an
// answer for a whole one.
func Handler(unit string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
				return
			case http.ErrAbortHandler: // an intended abort
			default:
				Caught(unit, p)
			}
			panic(http.ErrAbortHandler) // net/http closes the stream and logs nothing
		}()
		next.ServeHTTP(w, r)
	})
}
