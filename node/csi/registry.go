package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/fault"
)

const (
	// registryDir is where drivers put a socket that says how to reach them.
	registryDir = "plugins_registry"
	// firstRetry and lastRetry bound the pause before a registration that failed is tried again.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	// sweepInterval is how often volumes are looked for that are staged and that no pod uses.
	sweepInterval = time.Minute
	// settle lets a socket that has just been made begin to listen.
	settle = 50 * time.Millisecond
)

// socket is one registration socket. A driver that starts again makes a new file under the old path.
type socket struct {
	path  string
	inode uint64
	ctime unix.Timespec
}

// registration is what became of a socket.
type registration struct {
	driver string    // "" while it is not registered
	again  time.Time // when a failed one is tried again
	pause  time.Duration
}

// Run registers the drivers whose sockets are in the registry, and unstages what no pod uses, until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	dir := filepath.Join(n.cfg.RootDir, registryDir)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	defer watch.Close()
	if err := watch.Add(dir); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	defer n.closeAll()
	if !n.awaitNode(ctx) {
		return nil
	}
	known := map[socket]*registration{}
	sweep, limits := time.Now(), time.Now()
	for {
		next := n.syncSockets(ctx, dir, known)
		if !time.Now().Before(sweep) {
			_ = fault.Do("node/csi", func() { n.sweep(ctx) })
			sweep = time.Now().Add(sweepInterval)
		}
		if now := time.Now(); !now.Before(limits) {
			_ = fault.Do("node/csi", func() { n.refreshLimits(ctx, now) })
			limits = now.Add(limitsInterval)
		}
		timer := time.NewTimer(min(next, time.Until(sweep), time.Until(limits)))
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

// awaitNode waits until the Node exists, to which drivers add what they know of it; false when ctx ended first.
func (n *Node) awaitNode(ctx context.Context) bool {
	wait := settle
	for {
		_, err := n.cfg.Client.CoreV1().Nodes().Get(ctx, n.cfg.NodeName, metav1.GetOptions{})
		if err == nil {
			return true
		}
		if !pause(ctx, wait) {
			return false
		}
		wait = min(2*wait, lastRetry)
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
func (n *Node) syncSockets(ctx context.Context, dir string, known map[socket]*registration) time.Duration {
	found, err := sockets(dir)
	if err != nil {
		n.log.Warn("cannot read the registry of CSI drivers; tries again", "dir", dir, "err", err)
		return lastRetry
	}
	next := sweepInterval
	for s, r := range known {
		if !slices.Contains(found, s) {
			delete(known, s)
			n.forget(ctx, s, r, known)
		}
	}
	for _, s := range found {
		r := known[s]
		if r == nil {
			r = &registration{}
			known[s] = r
		}
		if r.driver != "" {
			continue
		}
		if wait := time.Until(r.again); wait > 0 {
			next = min(next, wait)
			continue
		}
		err := fault.Contain("node/csi", func() (err error) { r.driver, err = n.register(ctx, s.path); return err })
		if err != nil && ctx.Err() == nil {
			r.pause = min(max(2*r.pause, firstRetry), lastRetry)
			r.again, next = time.Now().Add(r.pause), min(next, r.pause)
			n.log.Warn("CSI driver not registered; tries again", "socket", s.path, "err", err)
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

// register asks a socket which driver it stands for and registers that.
func (n *Node) register(ctx context.Context, path string) (string, error) {
	conn, err := Dial(path)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return "", fmt.Errorf("GetInfo: %w", err)
	}
	err = n.admit(ctx, info, path)
	status := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	if _, told := client.NotifyRegistrationStatus(ctx, status); told != nil && err == nil {
		n.log.Warn("CSI driver registered, and its registrar could not be told", "driver", info.Name, "err", told)
	}
	if err != nil {
		return "", err
	}
	n.log.Info("CSI driver registered", "driver", info.Name, "endpoint", info.Endpoint)
	return info.Name, nil
}

// admit checks what a registrar says, asks the driver itself, and tells the cluster.
func (n *Node) admit(ctx context.Context, info *registerapi.PluginInfo, path string) error {
	if info.Type != registerapi.CSIPlugin {
		return fmt.Errorf("plug-ins of type %q are not supported", info.Type)
	}
	if info.Name == "" {
		return errors.New("the driver's name is empty")
	}
	if !slices.ContainsFunc(info.SupportedVersions, func(v string) bool { return strings.HasPrefix(strings.TrimPrefix(v, "v"), "1.") }) {
		return fmt.Errorf("driver %s supports versions %v, and not 1.x", info.Name, info.SupportedVersions)
	}
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = path
	}
	d, about, err := openDriver(ctx, info.Name, endpoint)
	if err != nil {
		return err
	}
	if err := n.publishDriver(ctx, d, about); err != nil {
		d.conn.Close()
		return err
	}
	n.mu.Lock()
	old := n.drivers[d.name]
	n.drivers[d.name] = d
	n.mu.Unlock()
	if old != nil {
		old.conn.Close()
	}
	return nil
}

// forget takes a driver out when its last socket has gone.
func (n *Node) forget(ctx context.Context, s socket, r *registration, known map[socket]*registration) {
	if r.driver == "" {
		return
	}
	for other, o := range known {
		if o.driver == r.driver || other.path == s.path { // it is registered anew, or is about to be
			return
		}
	}
	if _, err := os.Lstat(s.path); err == nil {
		return // made anew under the same path
	}
	n.mu.Lock()
	d := n.drivers[r.driver]
	delete(n.drivers, r.driver)
	n.mu.Unlock()
	if d != nil {
		d.conn.Close()
	}
	if err := n.withdrawDriver(ctx, r.driver); err != nil && ctx.Err() == nil {
		n.log.Warn("cannot take a CSI driver out of the CSINode", "driver", r.driver, "err", err)
	}
	n.log.Info("CSI driver gone: its volumes cannot be mounted or unmounted until it is back", "driver", r.driver)
}

func (n *Node) closeAll() {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.drivers))
	clear(n.drivers)
	n.mu.Unlock()
	for _, d := range all {
		d.conn.Close()
	}
}
