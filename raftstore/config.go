package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
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
	// Transport carries Raft between peers. Nil is a transport that reaches
	// nobody, which is right for a single voter. The store closes it.
	Transport raft.Transport

	// LogStore says in what the log is kept: LogStoreWAL, the default, or
	// LogStoreBolt. A directory that holds a bbolt log is converted once when
	// it is opened with LogStoreWAL.
	LogStore string

	// HeartbeatTimeout is both heartbeat and election timeout of Raft.
	// Default 250 ms. A single voter does not wait for it when it starts.
	HeartbeatTimeout time.Duration
	// LeaderLease is how long a leader leads without hearing from a quorum.
	// Default 125 ms.
	LeaderLease time.Duration

	// HistoryAge is how long older revisions stay readable and watchable.
	// Default 5 min.
	HistoryAge time.Duration
	// HistoryEvents and HistoryBytes bound the history: past either, the older
	// half goes. Defaults 1 million and 128 MiB.
	HistoryEvents int
	HistoryBytes  int64

	// MaxEntryBytes bounds one transaction. Default 8 MiB.
	MaxEntryBytes int

	// SnapshotEntries is after how many log entries a snapshot is taken, at
	// the earliest. Default 8192.
	SnapshotEntries int64

	Logger *slog.Logger

	// wrapLog lets a test stand between Raft and the log file.
	wrapLog func(logFile) logFile
}

func (c *Config) setDefaults() {
	def(&c.HeartbeatTimeout, 250*time.Millisecond)
	def(&c.LeaderLease, 125*time.Millisecond)
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
	if (c.Dir == "") != c.InMemory {
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
