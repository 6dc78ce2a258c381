package shutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
)

// logind answers as systemd's logind and as its service manager do.
type logind struct {
	t    *testing.T
	conn *dbus.Conn
	conf string // directory of its settings

	mu      sync.Mutex
	delay   time.Duration
	locks   []*os.File // the ends that tell when a lock is given back
	writers []*os.File // this process's own ends, closed before it is asked whether a lock is given back
	asked   []string
}

// Inhibit is of org.freedesktop.login1.Manager.
func (l *logind) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks = append(l.locks, r)
	l.asked = append(l.asked, what+" "+mode+" "+who)
	l.writers = append(l.writers, w)
	return dbus.UnixFD(w.Fd()), nil
}

// Get is of org.freedesktop.DBus.Properties.
func (l *logind) Get(_, property string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if property != "InhibitDelayMaxUSec" {
		return dbus.Variant{}, dbus.MakeFailedError(fmt.Errorf("no property %s", property))
	}
	return dbus.MakeVariant(uint64(l.delay / time.Microsecond)), nil
}

// KillUnit is of org.freedesktop.systemd1.Manager: logind reads its settings again.
func (l *logind) KillUnit(unit, _ string, signal int32) *dbus.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, err := os.ReadFile(filepath.Join(l.conf, confFile))
	if err != nil || unit != "systemd-logind.service" || signal != 1 {
		return dbus.MakeFailedError(fmt.Errorf("%s %d: %v", unit, signal, err))
	}
	var seconds int
	if _, err := fmt.Sscanf(string(text), "# pods end before the machine does\n[Login]\nInhibitDelayMaxSec=%d", &seconds); err != nil {
		return dbus.MakeFailedError(err)
	}
	l.delay = time.Duration(seconds) * time.Second
	return nil
}

func (l *logind) announce(down bool) {
	l.t.Helper()
	if err := l.conn.Emit(loginPath, manager+"."+announced, down); err != nil {
		l.t.Fatal(err)
	}
}

// isGivenBack reports whether the first lock is given back within a time.
func (l *logind) isGivenBack(within time.Duration) bool {
	if err := l.locks[0].SetReadDeadline(time.Now().Add(within)); err != nil {
		l.t.Fatal(err)
	}
	_, err := l.locks[0].Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// await waits until cond holds, which is called with the lock held.
func (l *logind) await(what string, cond func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		l.mu.Lock()
		ok := cond()
		l.mu.Unlock()
		if ok {
			return
		}
	}
	l.t.Fatalf("not %s", what)
}

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// newBus starts a bus of its own with a logind that waits 5 s, and returns how to connect to it.
func newBus(t *testing.T) (*logind, func(context.Context) (*dbus.Conn, error)) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	if err := os.WriteFile(filepath.Join(dir, "bus.conf"), fmt.Appendf(nil, busConfig, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("dbus-daemon", "--nofork", "--config-file="+filepath.Join(dir, "bus.conf"))
	if err := daemon.Start(); err != nil {
		t.Fatalf("this test needs dbus-daemon (Debian's package is dbus-daemon): %v", err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	connect := func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.Connect("unix:path="+socket, dbus.WithContext(ctx))
	}
	l := &logind{t: t, conf: filepath.Join(dir, "conf"), delay: 5 * time.Second}
	for deadline := time.Now().Add(time.Minute); l.conn == nil; <-time.After(10 * time.Millisecond) {
		if l.conn, err = connect(context.Background()); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = l.conn.Close() })
	for _, export := range []struct {
		at    dbus.ObjectPath
		iface string
	}{{loginPath, manager}, {loginPath, "org.freedesktop.DBus.Properties"}, {"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"}} {
		if err := l.conn.Export(l, export.at, export.iface); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{login, "org.freedesktop.systemd1"} {
		if _, err := l.conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil {
			t.Fatal(err)
		}
	}
	return l, connect
}

func TestTheLockIsHeldUntilThePodsHaveEnded(t *testing.T) {
	l, connect := newBus(t)
	began, ended, cancelled := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	w := &Watcher{Need: 20 * time.Second, ConfDir: l.conf, Connect: connect, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Began: func(context.Context) { close(began); <-ended }, Cancelled: func() { cancelled <- struct{}{} }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()

	l.await("a lock, and logind waits long enough", func() bool { return len(l.locks) == 1 && l.delay == 20*time.Second })
	if l.asked[0] != "shutdown delay balsa" {
		t.Errorf("asked for %q", l.asked)
	}
	l.announce(true)
	<-began
	if err := l.writers[0].Close(); err != nil {
		t.Fatal(err)
	}
	if l.isGivenBack(10 * time.Millisecond) {
		t.Error("the lock is given back while pods run")
	}
	close(ended)
	if !l.isGivenBack(time.Minute) {
		t.Error("the lock is not given back when the pods have ended")
	}
	l.announce(false)
	<-cancelled
	l.await("a second lock after the shutdown was cancelled", func() bool { return len(l.locks) == 2 })
}

func TestAMachineWithoutSystemdIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		tries := 0
		w := &Watcher{Need: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)), Connect: func(context.Context) (*dbus.Conn, error) {
			tries++
			return nil, os.ErrNotExist
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		w.Run(ctx)
		if n := strings.Count(log.String(), "systemd's logind does not answer"); n != 1 || tries < 10 {
			t.Errorf("said %d times in %d tries", n, tries)
		}
	})
}
