package wallclock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Watch calls functions whenever the wall clock is set. The zero value is not ready: use New.
type Watch struct {
	log  *slog.Logger
	next func() (func() error, func() error, error) // openTimer; tests use another one

	mu   sync.Mutex
	told []func()
}

// New returns a Watch without functions to call. It starts nothing.
func New(log *slog.Logger) *Watch { return &Watch{log: log, next: openTimer} }

// Notify makes Run call fn after each change of the clock. fn must return soon, because the functions are called one after
// the other.
func (w *Watch) Notify(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fn)
}

// Run waits for changes of the clock until ctx ends. On a kernel without such timers it logs a warning and does nothing:
// certificates are also checked once an hour and at each handshake.
func (w *Watch) Run(ctx context.Context) error {
	wait, closeTimer, err := w.next()
	if err != nil {
		w.log.Warn("the kernel does not report when the clock is set; certificates are checked once an hour and at each handshake", "err", err)
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = closeTimer() })
	defer stop()
	defer closeTimer()
	for {
		before := time.Now()
		err := wait()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for the clock to be set: %w", err)
		}
		w.tell(jumped(before, time.Now()))
	}
}

// jumped returns how much further the wall clock has moved than the monotonic clock.
func jumped(before, now time.Time) time.Duration {
	return now.Round(0).Sub(before.Round(0)) - now.Sub(before)
}

func (w *Watch) tell(by time.Duration) {
	if by.Abs() >= time.Minute {
		w.log.Warn("the clock was set; certificates and tokens are checked again", "by", by.Round(time.Second))
	}
	w.mu.Lock()
	told := w.told
	w.mu.Unlock()
	for _, fn := range told {
		fn()
	}
}

// openTimer returns wait, which blocks until the clock is set, and end, which makes wait return an error.
func openTimer() (wait, end func() error, err error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("timerfd: %w", err)
	}
	file := os.NewFile(uintptr(fd), "timerfd") // nonblocking: the runtime's poller waits for it
	arm := func() error {
		never := unix.ItimerSpec{Value: unix.Timespec{Sec: math.MaxInt64}}
		return unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil)
	}
	if err := arm(); err != nil {
		_ = file.Close()
		return nil, nil, fmt.Errorf("timerfd: %w", err)
	}
	return func() error {
		_, err := file.Read(make([]byte, 8))
		if !errors.Is(err, unix.ECANCELED) {
			return err
		}
		return arm()
	}, file.Close, nil
}
