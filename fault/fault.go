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

// Panic is the error that a contained panic becomes.
type Panic struct {
	Unit  string // what panicked: "leader/scheduler"
	Value any    // what it panicked with
	Stack []byte
}

// Error is one line, without the stack: that has been logged.
func (p *Panic) Error() string { return fmt.Sprintf("panic in %s: %v", p.Unit, p.Value) }

// Unwrap implements errors.Is for ErrPanic.
func (p *Panic) Unwrap() error { return ErrPanic }

// firstPause and lastPause bound the pause before Keep starts its work again; it doubles from panic to panic. Work that
// has run for calm since its last panic begins at firstPause again.
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
	counts = map[string]uint64{} // by unit; units are constants of the code, so there are not many
)

// LogTo has panics logged by l. Without it they go to slog.Default.
func LogTo(l *slog.Logger) { logger.Store(l) }

// Counts returns how many panics were contained so far, by unit.
func Counts() map[string]uint64 {
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(counts)
}

// Caught counts and logs a panic that the caller has recovered, in the deferred function itself, and returns it as an
// error. unit is a constant: it becomes the value of a metric's label.
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

// Contained returns work with its panics contained, for goroutines and timers whose end alone matters.
func Contained(unit string, work func()) func() {
	return func() { _ = Do(unit, work) }
}

// ContainedErr returns work with its panics turned into errors, for groups of goroutines that join errors.
func ContainedErr(unit string, work func() error) func() error {
	return func() error { return Contain(unit, work) }
}

// Do runs work and returns the *Panic it ended with, or nil.
func Do(unit string, work func()) error {
	return Contain(unit, func() error { work(); return nil })
}

// Retry runs work, and after a panic up to three times more within about a second, in the goroutine of the caller: for
// events that are handed over once and in order. It returns the last panic, or nil.
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

// Keep runs work until it returns or panics after ctx has ended. After any other panic it runs work again, with
// back-off; work has to be able to begin anew.
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

// Fatal is deferred by code that changes what must stay consistent. A panic that passes through it ends the process,
// whoever would recover it further up.
func Fatal(unit string) {
	if r := recover(); r != nil {
		text := fmt.Sprintf("fault: %s must not go on after a panic: %v\n%s", unit, r, debug.Stack())
		go panic(text) // in a goroutine where nobody can recover it
		select {}
	}
}

// Handler contains panics of an HTTP handler: the request is aborted, so that a half answer is not taken for a whole one.
func Handler(unit string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
				return
			case http.ErrAbortHandler: // on purpose
			default:
				Caught(unit, p)
			}
			panic(http.ErrAbortHandler) // net/http ends the stream and says nothing
		}()
		next.ServeHTTP(w, r)
	})
}
