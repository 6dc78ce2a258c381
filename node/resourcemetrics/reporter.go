package resourcemetrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/framer"

	"github.com/balsahq/balsa/node/stats"
)

// DefaultInterval is the time between two samples; metrics-server's usual resolution.
const DefaultInterval = 15 * time.Second

// firstInterval is the time between the first two samples at most, so that there are figures soon after the start.
const firstInterval = 5 * time.Second

// Config says what is measured, and how often.
type Config struct {
	NodeName string
	// Interval defaults to DefaultInterval.
	Interval time.Duration
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("resourcemetrics: Config.NodeName must be set"))
	}
	if c.Interval < 0 {
		errs = append(errs, fmt.Errorf("resourcemetrics: Interval %s is negative", c.Interval))
	}
	return errors.Join(errs...)
}

// Reporter measures and reports. Safe for concurrent use.
type Reporter struct {
	cfg Config

	mu      sync.Mutex
	number  uint64        // of the newest report; 0: there is none yet
	report  []byte        // read-only; nil when the last sample failed
	changed chan struct{} // closed when there is a newer report
}

// New starts nothing.
func New(cfg Config) (*Reporter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Interval == 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Reporter{cfg: cfg, changed: make(chan struct{})}, nil
}

// Run takes a sample with measure every Interval until ctx ends, and makes a report of each.
func (r *Reporter) Run(ctx context.Context, measure func(ctx context.Context) (stats.Usage, error)) error {
	var h history
	pause := min(firstInterval, r.cfg.Interval)
	for {
		measuring, cancel := context.WithTimeout(ctx, r.cfg.Interval)
		usage, err := measure(measuring)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.withdraw()
			r.cfg.Logger.Warn("cannot measure what the node and its pods use; the servers forget it within a minute", "err", err)
		default:
			h = h.next(usage, time.Now())
			if err := r.publish(h); err != nil {
				return err
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		pause = r.cfg.Interval
	}
}

// withdraw keeps the newest report, which is getting old, from those that connect from now on.
func (r *Reporter) withdraw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report = nil
}

// publish makes a report of h, which connections pass on.
func (r *Reporter) publish(h history) error {
	var report bytes.Buffer
	frames := framer.NewLengthDelimitedFrameWriter(&report)
	for _, o := range []interface{ Marshal() ([]byte, error) }{h.nodeMetrics(r.cfg.NodeName), h.podMetrics()} {
		data, err := o.Marshal()
		if err != nil {
			return fmt.Errorf("resourcemetrics: encode a report: %w", err)
		}
		if _, err := frames.Write(data); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number, r.report = r.number+1, report.Bytes()
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// newest returns the newest report and its number, and a channel that is closed when there is a newer one.
func (r *Reporter) newest() (uint64, []byte, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.number, r.report, r.changed
}

// Connect returns a connection that reports are read from: the newest at once, and each one after it.
func (r *Reporter) Connect() net.Conn { return &conn{reporter: r, closed: make(chan struct{})} }

// conn is one server's way to the reports. Reading it waits for the next.
type conn struct {
	reporter *Reporter
	read     uint64 // number of the last report that was begun
	rest     []byte // of it

	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn. One goroutine reads.
func (c *conn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		number, report, changed := c.reporter.newest()
		if number != c.read && report != nil {
			c.read, c.rest = number, report
			break
		}
		select {
		case <-changed:
		case <-c.closed:
			return 0, io.EOF
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Write implements net.Conn. A server has nothing to say here.
func (c *conn) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close implements net.Conn. It ends a Read that waits.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return addr{} }

// SetDeadline implements net.Conn. Close is the way to end a Read here.
func (c *conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

type addr struct{}

// Network implements net.Addr.
func (addr) Network() string { return "in-process" }

// String implements net.Addr.
func (addr) String() string { return "resource-metrics" }
