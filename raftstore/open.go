package raftstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

const (
	// maxAppend is how many entries one append, and one fsync, may carry.
	maxAppend = 512
	// trailingLogs is how many entries before a snapshot are kept, for followers that are a little behind.
	trailingLogs = 1024
	// commitTimeout is the delay after which Raft sends its followers the commit index when nothing else does; see
	// raftfix.CommitNotifier.
	commitTimeout = 500 * time.Millisecond
	// keepSnapshots is how many snapshots stay on disk.
	keepSnapshots = 2
)

// opening is a store while it is put together.
type opening struct {
	cfg    *Config
	dir    *dataDir // nil in memory
	meta   dirMeta
	disk   *raftlog.Store // nil in memory
	logs   raft.LogStore
	stable raft.StableStore
	snaps  raft.SnapshotStore
	m      *machine
	mark   *raftlog.CommitMark // nil in memory
	fresh  bool                // the directory holds no data yet
}

// Open opens or makes the store in cfg.Dir and starts Raft. A single voter leads and has replayed its log when Open returns. Errors name
// the file and what to do; a directory that held data never opens empty. The store works at once, but leases expire and history ages
// only while Run runs.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	lessor := newLessor()
	o := &opening{cfg: &cfg, m: newMachine(lessor)}
	o.m.origin = newOrigin()
	c, err := o.open()
	if err != nil {
		return nil, errors.Join(err, o.abandon())
	}
	s := &Store{cfg: cfg, log: cfg.Logger, meta: o.meta, dir: o.dir, mark: o.mark, machine: o.m, lessor: lessor, consensus: c,
		held: make(map[string]*Leadership)}
	return s, nil
}

// electionPatience bounds how long a single voter may take to lead at start.
const electionPatience = 30 * time.Second

// newOrigin returns a random number that tells the commands of this run of this peer from all others.
func newOrigin() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func (o *opening) open() (*consensus.Consensus, error) {
	if err := guard(o.storage); err != nil {
		if errors.Is(err, errPanic) {
			return nil, diskfile.Corrupt(o.dir.logPath(), err)
		}
		return nil, err
	}
	var c *consensus.Consensus
	err := guard(func() (err error) {
		c, err = o.start()
		return err
	})
	if err == nil {
		return c, nil
	}
	if o.disk != nil && o.disk.Refused() != nil {
		err = o.disk.Refused()
	}
	return nil, err
}

// abandon closes the files that a failed Open has opened.
func (o *opening) abandon() error {
	var errs []error
	if o.disk != nil {
		errs = append(errs, o.disk.Close())
	}
	if o.dir != nil {
		errs = append(errs, o.dir.close())
	}
	return errors.Join(append(errs, o.mark.Close())...)
}

// errPanic marks a panic that guard caught.
var errPanic = errors.New("unreadable")

// guard turns a panic into an error: bbolt and Raft panic at damage, and a memory-mapped file that is too short faults.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return fn()
}

// storage opens and checks everything on disk and restores the newest snapshot.
func (o *opening) storage() error {
	want := dirMeta{ClusterID: o.cfg.ClusterID, ServerID: o.cfg.ServerID, Generation: o.cfg.Generation, Joined: o.cfg.Join, Log: o.cfg.LogKind}
	if o.cfg.InMemory {
		mem := raft.NewInmemStore()
		o.logs, o.stable, o.snaps = mem, mem, raft.NewInmemSnapshotStore()
		o.meta, o.fresh = newMeta(want), true
		return nil
	}
	if t := o.cfg.testDisk; t != nil {
		return o.openTestDisk(t, want)
	}
	dir, err := openDir(o.cfg.Dir, want)
	if err != nil {
		return err
	}
	o.dir, o.meta = dir, dir.meta
	return o.openFiles()
}

// openTestDisk does for a test's disk what openFiles does for files.
func (o *opening) openTestDisk(t *testDisk, want dirMeta) error {
	o.meta, o.fresh = newMeta(want), t.fresh
	d := raftlog.New(t.log, "memory", o.cfg.Logger)
	o.disk, o.logs, o.stable, o.snaps = d, d, d, t.snaps
	list, err := t.snaps.List()
	if err != nil || len(list) == 0 {
		return err
	}
	_, r, err := t.snaps.Open(list[0].ID)
	if err != nil {
		return err
	}
	defer r.Close()
	return o.m.restore(r)
}

// start makes Raft and, for a single voter, waits until it leads.
func (o *opening) start() (*consensus.Consensus, error) {
	conf := o.raftConfig()
	trans := o.cfg.Transport
	if trans == nil {
		_, trans = raft.NewInmemTransport(raft.ServerAddress(o.meta.ServerID))
	}
	if at := trans.LocalAddr(); string(at) != o.meta.ServerID {
		return nil, fmt.Errorf("%w: the transport is of server %s, the directory of %s", ErrInvalid, at, o.meta.ServerID)
	}
	if o.fresh && !o.cfg.Join {
		servers := raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: trans.LocalAddr()}}}
		if err := raft.BootstrapCluster(conf, o.logs, o.stable, o.snaps, trans, servers); err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
	}
	if o.disk != nil {
		snaps, err := o.disk.SnapshotEnd.Watch(o.snaps)
		if err != nil {
			return nil, err
		}
		o.snaps = snaps
	}
	c := consensus.New(consensus.Config{ServerID: o.meta.ServerID, Origin: o.m.origin, Progress: o.m.progress, Halted: o.m.haltedErr,
		Log: o.disk, Transport: trans, Peers: o.cfg.Peers, AppendFirst: o.cfg.appendFirst})
	o.m.settle, o.m.lost = c.Settle, c.FailSent
	err := c.Start(func(t raft.Transport) (*raft.Raft, error) {
		return raft.NewRaft(conf, &fsm{m: o.m, mark: o.mark, applied: c.Applied}, o.logs, o.stable, o.snaps, t)
	})
	if err != nil {
		return nil, err
	}
	if err := o.lead(c); err != nil {
		if r := c.Refused(); r != nil {
			err = r
		}
		err = errors.Join(err, c.Close())
		o.disk = nil // closed with c
		return nil, err
	}
	return c, nil
}

func (o *opening) raftConfig() *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(o.meta.ServerID)
	// One nanosecond more than configured: lead lowers it, and Raft looks at its timeouts at once when they are lowered.
	conf.HeartbeatTimeout = o.cfg.HeartbeatTimeout + 1
	conf.ElectionTimeout = o.cfg.HeartbeatTimeout + 1
	conf.LeaderLeaseTimeout = o.cfg.LeaderLease
	conf.MaxAppendEntries = maxAppend
	// Raft never answers requests that are left in a buffered queue when it ends, and Close waits for every answer. The queue would
	// gain nothing: batches are full before they get there.
	conf.BatchApplyCh = false
	conf.TrailingLogs = trailingLogs
	conf.SnapshotThreshold = 1 << 62 // Run takes the snapshots
	conf.NoSnapshotRestoreOnStart = true
	conf.CommitTimeout = commitTimeout
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = raftLogger(o.cfg.Logger)
	return conf
}

// lead lets a single voter stand for election without waiting for another server to lead, and returns when its log is replayed.
func (o *opening) lead(c *consensus.Consensus) error {
	rc := c.Raft().ReloadableConfig()
	rc.HeartbeatTimeout, rc.ElectionTimeout = o.cfg.HeartbeatTimeout, o.cfg.HeartbeatTimeout
	if err := c.Raft().ReloadConfig(rc); err != nil {
		return err
	}
	if c.Sole() {
		if err := o.awaitLeader(c); err != nil {
			return err
		}
	}
	if o.disk != nil {
		o.disk.SetWarm(nil)
	}
	if o.dir != nil {
		return o.dir.commit()
	}
	return nil
}

// lookInterval is how often a disk that refuses is looked for while this peer waits to lead.
const lookInterval = 250 * time.Millisecond

// awaitLeader returns when this peer leads and has applied its whole log.
func (o *opening) awaitLeader(c *consensus.Consensus) error {
	timeout := time.NewTimer(electionPatience)
	defer timeout.Stop()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		changed := c.LeaderChanged()
		_, _, moved := o.m.progress.Next()
		if c.Leading() {
			return nil
		}
		if err := o.m.haltedErr(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-moved:
		case <-look.C:
			if err := c.Refused(); err != nil {
				return err
			}
		case <-timeout.C:
			return fmt.Errorf("%w: not elected within %v", ErrNoLeader, electionPatience)
		}
	}
}
