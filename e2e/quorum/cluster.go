package quorum

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/balsahq/balsa/e2e/lan"
)

// Config describes a Cluster.
type Config struct {
	System    string // "balsa" or "etcd"
	Binary    string // the program of that system
	Servers   int
	DiskBytes int64 // of each server's disk; 0: a directory, which cannot be filled
	Flags     []string
}

// system is the part that differs between the systems under test.
type system interface {
	// credentials are known once the first member runs.
	credentials() (Credentials, error)
	// program returns the program that starts member i, for the first time or again.
	program(ctx context.Context, i int) (lan.Program, error)
	// remove removes a member from the membership, through another member.
	remove(ctx context.Context, i, through int) error
	port() int
}

// Credentials are the files of an administrator's client certificate.
type Credentials struct{ CA, Cert, Key string }

// Cluster is a few servers and the network between them.
type Cluster struct {
	Net *lan.Network

	cfg Config
	sys system

	mu      sync.Mutex
	servers []*lan.Process // nil: never started
}

// New makes the machines. No program runs on them yet.
func New(cfg Config) (*Cluster, error) {
	binary, err := filepath.Abs(cfg.Binary)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("the program under test is missing: %w", err)
	}
	cfg.Binary = binary
	n, err := lan.New(lan.Config{Machines: cfg.Servers, DiskBytes: cfg.DiskBytes})
	if err != nil {
		return nil, err
	}
	c := &Cluster{Net: n, cfg: cfg, servers: make([]*lan.Process, cfg.Servers)}
	switch cfg.System {
	case "etcd":
		c.sys, err = newEtcd(c)
	case "balsa":
		c.sys = newBalsa(c)
	default:
		err = fmt.Errorf("unknown system %q: give balsa or etcd", cfg.System)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return c, nil
}

// Form starts every server and waits until each serves.
func (c *Cluster) Form(ctx context.Context) error {
	for i := range c.servers {
		if err := c.Start(ctx, i); err != nil {
			return err
		}
		if i == 0 && c.cfg.System == "balsa" {
			if err := c.Ready(ctx, 0); err != nil {
				return err
			}
		}
	}
	for i := range c.servers {
		if err := c.Ready(ctx, i); err != nil {
			return err
		}
	}
	return c.Voting(ctx)
}

// Voting waits until every server has a vote. A server that joined gets its vote when it has caught up and was healthy
// for a while.
func (c *Cluster) Voting(ctx context.Context) error {
	client, err := c.Client(c.Endpoints()...)
	if err != nil {
		return err
	}
	defer client.Close()
	for ; ctx.Err() == nil; Pause(ctx, 100*time.Millisecond) {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		list, fault := client.MemberList(try)
		cancel()
		if err = fault; err != nil {
			continue
		}
		voters := 0
		for _, m := range list.Members {
			if !m.IsLearner {
				voters++
			}
		}
		if voters >= c.Size() {
			return nil
		}
		err = fmt.Errorf("%d of %d members vote", voters, len(list.Members))
	}
	return errors.Join(ctx.Err(), err)
}

// Size is the number of servers.
func (c *Cluster) Size() int { return len(c.servers) }

// System returns the name of the system under test.
func (c *Cluster) System() string { return c.cfg.System }

// Start starts server i, for the first time or again. It returns when the process runs, which may be before it serves.
func (c *Cluster) Start(ctx context.Context, i int) error {
	if p := c.Process(i); p != nil && p.Running() {
		return nil
	}
	prog, err := c.sys.program(ctx, i)
	if err != nil {
		return fmt.Errorf("start server %d: %w", i, err)
	}
	prog.Log = c.Log(i)
	p, err := c.Net.Machines[i].Start(prog)
	if err != nil {
		return fmt.Errorf("start server %d: %w", i, err)
	}
	c.mu.Lock()
	c.servers[i] = p
	c.mu.Unlock()
	return nil
}

// Process returns server i's process, nil if it was never started.
func (c *Cluster) Process(i int) *lan.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[i]
}

// Running reports whether server i's process runs.
func (c *Cluster) Running(i int) bool {
	p := c.Process(i)
	return p != nil && p.Running()
}

// Log returns the file with the output of server i.
func (c *Cluster) Log(i int) string {
	return filepath.Join(c.Net.Machines[i].Dir, "server.log")
}

// Host returns server i's host:port.
func (c *Cluster) Host(i int) string {
	return net.JoinHostPort(c.Net.Machines[i].Addr.String(), strconv.Itoa(c.sys.port()))
}

// Endpoint returns the URL of server i's etcd v3 API.
func (c *Cluster) Endpoint(i int) string { return "https://" + c.Host(i) }

// Endpoints returns the URLs of all servers.
func (c *Cluster) Endpoints() []string {
	out := make([]string, c.Size())
	for i := range out {
		out[i] = c.Endpoint(i)
	}
	return out
}

// Credentials returns an administrator's.
func (c *Cluster) Credentials() (Credentials, error) { return c.sys.credentials() }

// Client returns a client on the client's machine that uses the given endpoints and reconnects quickly.
func (c *Cluster) Client(endpoints ...string) (*clientv3.Client, error) {
	files, err := c.sys.credentials()
	if err != nil {
		return nil, err
	}
	config, err := files.tls()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: config, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return c.Net.Client.Dial(ctx, "tcp", addr)
			}),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 300 * time.Millisecond},
				MinConnectTimeout: time.Second,
			}),
		},
	})
}

// Ready waits until server i answers a linearizable read.
func (c *Cluster) Ready(ctx context.Context, i int) error {
	var last error
	for ctx.Err() == nil {
		if !c.Running(i) {
			return fmt.Errorf("server %d has ended:\n%s", i, c.Tail(i))
		}
		last = func() error {
			client, err := c.Client(c.Endpoint(i))
			if err != nil {
				return err
			}
			defer client.Close()
			try, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err = client.Get(try, "ready")
			return err
		}()
		if last == nil {
			return nil
		}
		Pause(ctx, 50*time.Millisecond)
	}
	return fmt.Errorf("server %d does not serve: %w\n%s", i, last, c.Tail(i))
}

// Tail returns the end of server i's log.
func (c *Cluster) Tail(i int) string {
	raw, err := os.ReadFile(c.Log(i))
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-3000):])
}

// ErrNoLeader: no server that answers knows a leader.
var ErrNoLeader = errors.New("no leader")

// Leader returns the server that leads.
func (c *Cluster) Leader(ctx context.Context) (int, error) {
	_, leader, err := c.members(ctx)
	return leader, err
}

// members asks all servers at the same time for their member IDs (0: no answer). It returns the leader; if the servers
// disagree, the one of the highest term.
func (c *Cluster) members(ctx context.Context) (ids []uint64, leader int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	type view struct{ id, leader, term uint64 }
	views := make([]view, c.Size())
	var asked sync.WaitGroup
	for i := range views {
		asked.Go(func() {
			client, err := c.Client(c.Endpoint(i))
			if err != nil {
				return
			}
			defer client.Close()
			if s, err := client.Status(ctx, c.Endpoint(i)); err == nil {
				views[i] = view{s.Header.MemberId, s.Leader, s.RaftTerm}
			}
		})
	}
	asked.Wait()
	leader, best := -1, uint64(0)
	ids = make([]uint64, c.Size())
	for i, v := range views {
		ids[i] = v.id
		if v.id != 0 && v.leader == v.id && v.term > best {
			leader, best = i, v.term
		}
	}
	if leader < 0 {
		return ids, leader, ErrNoLeader
	}
	return ids, leader, nil
}

// MoveLeader makes another server the leader.
func (c *Cluster) MoveLeader(ctx context.Context, to int) error {
	ids, leader, err := c.members(ctx)
	if err != nil {
		return err
	}
	if leader == to {
		return nil
	}
	if ids[to] == 0 {
		return fmt.Errorf("server %d does not answer", to)
	}
	client, err := c.Client(c.Endpoint(leader))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = client.MoveLeader(ctx, ids[to])
	return err
}

// Replace removes server i from the membership for good, and lets an empty server join on its machine. It waits until
// the new server serves and votes. A server serves when it has caught up; the result is the time from its start until
// then.
func (c *Cluster) Replace(ctx context.Context, i int) (time.Duration, error) {
	if p := c.Process(i); p != nil {
		if err := p.Kill9(); err != nil {
			return 0, err
		}
	}
	if err := c.sys.remove(ctx, i, (i+1)%c.Size()); err != nil {
		return 0, fmt.Errorf("remove server %d: %w", i, err)
	}
	if err := empty(c.Net.Machines[i].Data()); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := c.Start(ctx, i); err != nil {
		return 0, err
	}
	err := c.Ready(ctx, i)
	took := time.Since(began)
	return took, errors.Join(err, c.Voting(ctx))
}

// empty deletes the content of a directory, except what a file system keeps there.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "lost+found" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// Close ends all programs and removes everything.
func (c *Cluster) Close() error { return c.Net.Close() }

// Pause waits for d or the end of ctx.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
