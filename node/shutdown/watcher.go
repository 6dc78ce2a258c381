package shutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	login      = "org.freedesktop.login1"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
	manager    = "org.freedesktop.login1.Manager"
	announced  = "PrepareForShutdown"
	confFile   = "99-balsa.conf"
	callLimit  = 10 * time.Second // a call to logind
	retryDelay = 30 * time.Second // before the bus is asked again
)

// Watcher holds logind's delay lock and tells when the machine goes down.
type Watcher struct {
	// Need is how long the shutdown is held up at most. logind is told to allow it.
	Need time.Duration
	// ConfDir is logind's directory of settings; default /etc/systemd/logind.conf.d.
	ConfDir string
	// Connect connects to the system's bus; default dbus.ConnectSystemBus.
	Connect func(context.Context) (*dbus.Conn, error)
	// Began is called when the machine is about to go down, which it does when Began returns.
	Began func(context.Context)
	// Cancelled is called when the machine does not go down after all.
	Cancelled func()
	Logger    *slog.Logger
}

// Run watches until ctx ends. A machine without systemd is said once, and asked again in case it starts later.
func (w *Watcher) Run(ctx context.Context) {
	said := false
	for ctx.Err() == nil {
		err := w.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if !said {
			w.Logger.Warn("systemd's logind does not answer: pods are not ended in order when the machine goes down, until it does", "err", err)
			said = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryDelay):
		}
	}
}

// session watches over one connection and returns why it ended.
func (w *Watcher) session(ctx context.Context) error {
	connect := w.Connect
	if connect == nil {
		connect = func(ctx context.Context) (*dbus.Conn, error) { return dbus.ConnectSystemBus(dbus.WithContext(ctx)) }
	}
	conn, err := connect(ctx)
	if err != nil {
		return fmt.Errorf("shutdown: the system's bus: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := w.allow(ctx, conn); err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 8)
	conn.Signal(signals)
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(manager), dbus.WithMatchMember(announced), dbus.WithMatchObjectPath(loginPath)); err != nil {
		return fmt.Errorf("shutdown: subscribe: %w", err)
	}
	lock, err := takeLock(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s, open := <-signals:
			if !open {
				return errors.New("shutdown: the connection to the system's bus has ended")
			}
			var down bool
			if s.Name != manager+"."+announced || dbus.Store(s.Body, &down) != nil {
				continue
			}
			if down {
				w.Began(ctx)
				_ = lock.Close() // the machine goes on going down
				continue
			}
			w.Cancelled()
			_ = lock.Close()
			if lock, err = takeLock(ctx, conn); err != nil {
				return err
			}
		}
	}
}

func call(ctx context.Context, conn *dbus.Conn, dest string, path dbus.ObjectPath, method string, args ...any) *dbus.Call {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return conn.Object(dest, path).CallWithContext(ctx, method, 0, args...)
}

// takeLock takes a delay lock; closing it gives it back.
func takeLock(ctx context.Context, conn *dbus.Conn) (io.Closer, error) {
	var fd dbus.UnixFD
	if err := call(ctx, conn, login, loginPath, manager+".Inhibit", "shutdown", "balsa", "pods end before the machine does", "delay").Store(&fd); err != nil {
		return nil, fmt.Errorf("shutdown: take the lock: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibit"), nil
}

// allowed returns how long logind waits for a lock.
func allowed(ctx context.Context, conn *dbus.Conn) (time.Duration, error) {
	var micros uint64
	if err := call(ctx, conn, login, loginPath, "org.freedesktop.DBus.Properties.Get", manager, "InhibitDelayMaxUSec").Store(&micros); err != nil {
		return 0, fmt.Errorf("shutdown: how long logind waits: %w", err)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// allow makes logind wait as long as the pods need, by a file of settings, when it does not yet.
func (w *Watcher) allow(ctx context.Context, conn *dbus.Conn) error {
	have, err := allowed(ctx, conn)
	if err != nil || have >= w.Need {
		return err
	}
	dir := w.ConfDir
	if dir == "" {
		dir = "/etc/systemd/logind.conf.d"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	text := fmt.Sprintf("# pods end before the machine does\n[Login]\nInhibitDelayMaxSec=%d\n", int64((w.Need+time.Second-1)/time.Second))
	if err := os.WriteFile(filepath.Join(dir, confFile), []byte(text), 0o644); err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	const hangUp = 1
	if err := call(ctx, conn, "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.KillUnit", "systemd-logind.service", "all", int32(hangUp)).Err; err != nil {
		return fmt.Errorf("shutdown: have logind read its settings: %w", err)
	}
	for deadline := time.Now().Add(callLimit); time.Now().Before(deadline); {
		if have, err = allowed(ctx, conn); err != nil || have >= w.Need {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("shutdown: logind waits for %s, and pods need %s; another file of %s says so", have, w.Need, dir)
}
