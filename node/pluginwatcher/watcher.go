package pluginwatcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/fault"
)

const (
	// firstRetry and lastRetry bound the pause before a registration that failed is tried again.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	// lookInterval is how often the directory is read though no event says that it changed.
	lookInterval = time.Minute
	// settle lets a socket that has just been made begin to listen.
	settle = 50 * time.Millisecond
	// callTimeout is how long a registration may take.
	callTimeout = 2 * time.Minute
)

// Replacement is what stands in for a plug-in whose socket has gone.
type Replacement int

// The replacements.
const (
	None      Replacement = iota
	SamePath              // a socket was made anew under the same path
	OtherPath             // another socket stands for a plug-in of the same name
)

// Handler registers the plug-ins of one type.
type Handler interface {
	// Register takes a plug-in in whose service is at the endpoint. The plug-in is told the error.
	Register(ctx context.Context, info *registerapi.PluginInfo, endpoint string) error
	// Gone says that the socket of a registered plug-in has gone.
	Gone(ctx context.Context, info *registerapi.PluginInfo, endpoint string, by Replacement)
}

// Watcher follows one directory.
type Watcher struct {
	Dir string
	// Handlers are the types of plug-ins that are registered, such as registerapi.CSIPlugin.
	Handlers map[string]Handler
	// Ready waits until plug-ins can be registered; false when ctx ended first.
	Ready func(ctx context.Context) bool
	// Dial connects to a unix socket.
	Dial   func(path string) (*grpc.ClientConn, error)
	Logger *slog.Logger
}

// socket is one registration socket. A plug-in that starts again makes a new file under the old path.
type socket struct {
	path  string
	inode uint64
	ctime unix.Timespec
}

// registration is what became of a socket.
type registration struct {
	info     *registerapi.PluginInfo // nil while it is not registered
	endpoint string
	again    time.Time // when a failed one is tried again
	pause    time.Duration
}

// Run registers the plug-ins whose sockets are in the directory until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if err := os.MkdirAll(w.Dir, 0o750); err != nil {
		return err
	}
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.Dir, err)
	}
	defer watch.Close()
	if err := watch.Add(w.Dir); err != nil {
		return fmt.Errorf("watch %s: %w", w.Dir, err)
	}
	if !w.Ready(ctx) {
		return nil
	}
	known := map[socket]*registration{}
	for {
		timer := time.NewTimer(w.syncSockets(ctx, known))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-watch.Events:
			timer.Stop()
			if !pause(ctx, settle) {
				return nil
			}
			drain(watch.Events)
		case <-watch.Errors: // the queue overflowed: the next look at the directory tells
			timer.Stop()
		case <-timer.C:
		}
	}
}

func drain(events <-chan fsnotify.Event) {
	for {
		select {
		case _, open := <-events:
			if !open {
				return
			}
		default:
			return
		}
	}
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// syncSockets brings known in line with the directory and returns when to look again at the latest.
func (w *Watcher) syncSockets(ctx context.Context, known map[socket]*registration) time.Duration {
	found, err := sockets(w.Dir)
	if err != nil {
		w.Logger.Warn("cannot read the directory of plug-ins; tries again", "dir", w.Dir, "err", err)
		return lastRetry
	}
	next := lookInterval
	for s, r := range known {
		if !slices.Contains(found, s) {
			delete(known, s)
			_ = fault.Do("node/plug-ins", func() { w.forget(ctx, s, r, known) })
		}
	}
	for _, s := range found {
		r := known[s]
		if r == nil {
			r = &registration{}
			known[s] = r
		}
		if r.info != nil {
			continue
		}
		if wait := time.Until(r.again); wait > 0 {
			next = min(next, wait)
			continue
		}
		err := fault.Contain("node/plug-ins", func() error { return w.register(ctx, s.path, r) })
		if err != nil && ctx.Err() == nil {
			r.pause = min(max(2*r.pause, firstRetry), lastRetry)
			r.again, next = time.Now().Add(r.pause), min(next, r.pause)
			w.Logger.Warn("plug-in not registered; tries again", "socket", s.path, "err", err)
		}
	}
	return next
}

// sockets lists the sockets below dir, by path.
func sockets(dir string) (out []socket, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone since its directory was read
			}
			return err
		}
		if d.Type() != fs.ModeSocket || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			out = append(out, socket{path: path, inode: st.Ino, ctime: st.Ctim})
		}
		return nil
	})
	return out, err
}

// register asks a socket which plug-in it stands for and registers that.
func (w *Watcher) register(ctx context.Context, path string, r *registration) error {
	conn, err := w.Dial(path)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return fmt.Errorf("GetInfo: %w", err)
	}
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = path
	}
	if h := w.Handlers[info.Type]; h != nil {
		err = h.Register(ctx, info, endpoint)
	} else {
		err = fmt.Errorf("plug-ins of type %q are not supported", info.Type)
	}
	status := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	if _, told := client.NotifyRegistrationStatus(ctx, status); told != nil && err == nil {
		w.Logger.Warn("plug-in registered, and its registrar could not be told", "plugin", info.Name, "err", told)
	}
	if err == nil {
		r.info, r.endpoint = info, endpoint
	}
	return err
}

// forget tells the handler of a socket that has gone.
func (w *Watcher) forget(ctx context.Context, s socket, r *registration, known map[socket]*registration) {
	if r.info == nil {
		return
	}
	by := None
	for other, o := range known {
		switch {
		case other.path == s.path: // it is about to be registered anew
			by = SamePath
		case by == None && o.info != nil && o.info.Name == r.info.Name && o.info.Type == r.info.Type:
			by = OtherPath
		}
	}
	if _, err := os.Lstat(s.path); err == nil {
		by = SamePath
	}
	w.Handlers[r.info.Type].Gone(ctx, r.info, r.endpoint, by)
}
