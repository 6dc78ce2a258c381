package raftstore

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/hashicorp/raft"
)

const (
	// maxAppend is how many entries one append, and one fsync, may carry.
	maxAppend = 512
	// trailingLogs is how much log is kept behind a snapshot, for followers
	// that are a little behind.
	trailingLogs = 1024
	// keepSnapshots is how many snapshots stay on disk.
	keepSnapshots = 2
)

// opening is a store while it is put together.
type opening struct {
	cfg    *Config
	dir    *dataDir // nil in memory
	meta   dirMeta
	disk   *disk // nil in memory
	logs   raft.LogStore
	stable raft.StableStore
	snaps  raft.SnapshotStore
	m      *machine
	fresh  bool // nothing there yet
}

// Open opens or makes the store in cfg.Dir and starts Raft. A single voter
// leads and has replayed its log when Open returns. Errors name the file and
// what to do; a directory that held data never opens empty. The store works at
// once, but leases expire and history ages only while Run runs.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	lessor := newLessor()
	o := &opening{cfg: &cfg, m: newMachine(lessor)}
	c, err := o.open()
	if err != nil {
		return nil, errors.Join(err, o.abandon())
	}
	s := &Store{cfg: cfg, log: cfg.Logger, meta: o.meta, dir: o.dir, machine: o.m, lessor: lessor, consensus: c,
		held: make(map[string]*Leadership)}
	lessor.promote()
	return s, nil
}

func (o *opening) open() (*consensus, error) {
	if err := guard(o.storage); err != nil {
		if errors.Is(err, errPanic) {
			return nil, corrupt(o.dir.logPath(), err)
		}
		return nil, err
	}
	var c *consensus
	err := guard(func() (err error) {
		c, err = o.start()
		return err
	})
	if err == nil {
		return c, nil
	}
	if o.disk != nil && o.disk.refused() != nil {
		err = o.disk.refused()
	}
	return nil, err
}

// abandon lets go of what a failed Open holds.
func (o *opening) abandon() error {
	var errs []error
	if o.disk != nil {
		errs = append(errs, o.disk.close())
	}
	if o.dir != nil {
		errs = append(errs, o.dir.close())
	}
	return errors.Join(errs...)
}

// errPanic marks what guard caught.
var errPanic = errors.New("unreadable")

// guard turns a panic, which is how bbolt and Raft answer damage, and a fault
// on a file that is shorter than its map, into an error.
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
	if o.cfg.InMemory {
		mem := raft.NewInmemStore()
		o.logs, o.stable, o.snaps = mem, mem, raft.NewInmemSnapshotStore()
		o.meta, o.fresh = newMeta(o.cfg.ClusterID), true
		return nil
	}
	dir, err := openDir(o.cfg.Dir, o.cfg.ClusterID)
	if err != nil {
		return err
	}
	o.dir, o.meta = dir, dir.meta
	return o.openFiles()
}

// start makes Raft and, for a single voter, waits until it leads.
func (o *opening) start() (*consensus, error) {
	conf := o.raftConfig()
	trans := o.cfg.Transport
	if trans == nil {
		_, trans = raft.NewInmemTransport(raft.ServerAddress(o.meta.ServerID))
	}
	if o.fresh {
		servers := raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: trans.LocalAddr()}}}
		if err := raft.BootstrapCluster(conf, o.logs, o.stable, o.snaps, trans, servers); err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
	}
	r, err := raft.NewRaft(conf, &fsm{o.m}, o.logs, o.stable, o.snaps, trans)
	if err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	if o.disk != nil {
		o.disk.live.Store(true) // from here on it is Raft's goroutine that writes
	}
	c := &consensus{raft: r, disk: o.disk, closed: make(chan struct{})}
	if err := o.lead(c, conf); err != nil {
		if r := c.refused(); r != nil {
			err = r
		}
		err = errors.Join(err, c.close())
		o.disk = nil // closed with c
		return nil, err
	}
	return c, nil
}

func (o *opening) raftConfig() *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(o.meta.ServerID)
	// One more than is meant: lead lowers it, which makes Raft look at once.
	conf.HeartbeatTimeout = o.cfg.HeartbeatTimeout + 1
	conf.ElectionTimeout = o.cfg.HeartbeatTimeout + 1
	conf.LeaderLeaseTimeout = o.cfg.LeaderLease
	conf.MaxAppendEntries = maxAppend
	conf.BatchApplyCh = true
	conf.TrailingLogs = trailingLogs
	conf.SnapshotThreshold = 1 << 62 // Run decides when
	conf.NoSnapshotRestoreOnStart = true
	conf.NoLegacyTelemetry = true
	conf.Logger = raftLogger(o.cfg.Logger)
	return conf
}

// lead lets a single voter stand for election without waiting for a leader
// nobody else can be, and returns when its log is replayed.
func (o *opening) lead(c *consensus, conf *raft.Config) error {
	f := c.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return fmt.Errorf("raft configuration: %w", err)
	}
	voters, self := 0, false
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters++
			self = self || s.ID == conf.LocalID
		}
	}
	c.sole = voters == 1 && self
	rc := c.raft.ReloadableConfig()
	rc.HeartbeatTimeout, rc.ElectionTimeout = o.cfg.HeartbeatTimeout, o.cfg.HeartbeatTimeout
	if err := c.raft.ReloadConfig(rc); err != nil {
		return err
	}
	if c.sole {
		if err := o.awaitLeader(c); err != nil {
			return err
		}
	}
	if o.disk != nil {
		o.disk.warm.Store(nil)
		if err := o.dir.commit(); err != nil {
			return err
		}
	}
	return nil
}
