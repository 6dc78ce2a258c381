package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/raftlog"
)

// Config says where a store lives and what it may use. The zero value of every
// field but Dir is a sensible default.
type Config struct {
	// Dir holds log, snapshots and identity. It is made when it does not exist.
	Dir string
	// InMemory keeps nothing on disk: for tests. Dir must be empty.
	InMemory bool
	// ClusterID refuses a directory of another cluster. A new directory gets
	// it, or a random one when it is empty.
	ClusterID string
	// ServerID is the identity a new directory gets, a random one when it is
	// empty. The directory of another server is refused.
	ServerID string
	// Generation is given to a new directory; 1 when it is 0.
	Generation int64
	// Join makes a new directory wait until the leader of a cluster adds this
	// peer. Without it a new directory is the beginning of a cluster of one.
	Join bool
	// Transport carries Raft between peers; its address of a peer is the peer's ServerID. Nil is a transport that reaches no peer,
	// which is right for a single voter. The store closes it if it can be closed.
	Transport raft.Transport
	// Peers carries the store's own requests to other peers. Nil reaches no peer.
	Peers Peers

	// LogKind says which library's files hold the log: raftlog.WAL or raftlog.BoltDB. Empty is the kind the directory began with,
	// and WAL for a new one. A directory that began with another kind is refused.
	LogKind raftlog.Kind

	// HeartbeatTimeout is both the heartbeat timeout and the election timeout of Raft. Default 500 ms. A single voter does not wait
	// for it when it starts, and no voter waits for it when the leader's process ends: see Store.PeerEnded.
	HeartbeatTimeout time.Duration
	// LeaderLease is how long a leader leads without an answer from a quorum. No read relies on it, so it need not be shorter than
	// HeartbeatTimeout, which is the default: a busy machine does not lose its leadership for a late answer.
	LeaderLease time.Duration

	// HistoryAge is how long older revisions stay readable and watchable.
	// Default 5 min.
	HistoryAge time.Duration
	// HistoryEvents and HistoryBytes bound the history: beyond either, the older half is removed. Defaults 1 million and 128 MiB.
	HistoryEvents int
	HistoryBytes  int64

	// MaxEntryBytes bounds one transaction. Default 8 MiB.
	MaxEntryBytes int

	// SnapshotEntries is after how many log entries a snapshot is taken, at
	// the earliest. Default 8192.
	SnapshotEntries int64

	Logger *slog.Logger

	// wrapLog lets a test stand between Raft and the log file.
	wrapLog func(raftlog.File) raftlog.File
	// appendFirst makes a leader write its log before its followers write theirs, for the benchmark that shows the gain of
	// writing beside them.
	appendFirst bool
	// testDisk replaces the log file and the snapshots by a test's, which survive the store. Dir is empty then.
	testDisk *testDisk
}

// testDisk is a disk in memory.
type testDisk struct {
	log   raftlog.File
	snaps raft.SnapshotStore
	fresh bool // nothing was ever written to it
}

func (c *Config) setDefaults() {
	def(&c.HeartbeatTimeout, 500*time.Millisecond)
	if c.LeaderLease == 0 {
		c.LeaderLease = c.HeartbeatTimeout
	}
	def(&c.HistoryAge, 5*time.Minute)
	def(&c.HistoryEvents, 1_000_000)
	def(&c.HistoryBytes, 128<<20)
	def(&c.MaxEntryBytes, 8<<20)
	def(&c.SnapshotEntries, 8192)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.LogKind != "" && !slices.Contains(raftlog.Kinds, c.LogKind) {
		errs = append(errs, fmt.Errorf("LogKind is %q, it must be one of %q", c.LogKind, raftlog.Kinds))
	}
	if c.Join && c.Peers == nil {
		errs = append(errs, errors.New("Join needs Peers, to reach the cluster"))
	}
	if (c.Dir == "") != (c.InMemory || c.testDisk != nil) {
		errs = append(errs, errors.New("exactly one of Dir and InMemory must be set"))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"HeartbeatTimeout", c.HeartbeatTimeout}, {"LeaderLease", c.LeaderLease}, {"HistoryAge", c.HistoryAge}} {
		if d.v < 0 || d.v > 0 && d.v < 10*time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %v, at least 10ms needed", d.name, d.v))
		}
	}
	if c.HeartbeatTimeout > 0 && c.LeaderLease > c.HeartbeatTimeout {
		errs = append(errs, fmt.Errorf("LeaderLease %v is longer than HeartbeatTimeout %v", c.LeaderLease, c.HeartbeatTimeout))
	}
	for _, n := range []struct {
		name string
		v    int64
	}{
		{"HistoryEvents", int64(c.HistoryEvents)}, {"HistoryBytes", c.HistoryBytes},
		{"MaxEntryBytes", int64(c.MaxEntryBytes)}, {"SnapshotEntries", c.SnapshotEntries},
	} {
		if n.v < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: %d", n.name, n.v))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: configuration: %w", ErrInvalid, err)
	}
	return nil
}
