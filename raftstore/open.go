package raftstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

const (
	// maxAppend is how many entries one append, and one fsync, may carry.
	maxAppend = 512
	// trailingLogs is how much log is kept behind a snapshot, for followers
	// that are a little behind.
	trailingLogs = 1024
	// commitTimeout is after how long Raft tells its followers what is
	// committed when nothing else does; see links.
	commitTimeout = 500 * time.Millisecond
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
	mark   *commitMark // nil in memory
	fresh  bool        // nothing there yet
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
	o.m.origin = randomOrigin()
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

// randomOrigin tells the commands of this run of this peer from all others.
func randomOrigin() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func (o *opening) open() (*consensus, error) {
	if err := guard(o.storage); err != nil {
		if errors.Is(err, errPanic) {
			return nil, diskfile.Corrupt(o.dir.logPath(), err)
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
	return errors.Join(append(errs, o.mark.close())...)
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
	want := dirMeta{ClusterID: o.cfg.ClusterID, ServerID: o.cfg.ServerID, Generation: o.cfg.Generation, Joined: o.cfg.Join}
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

// openTestDisk is what openFiles is for files.
func (o *opening) openTestDisk(t *testDisk, want dirMeta) error {
	o.meta, o.fresh = newMeta(want), t.fresh
	d := newDisk(t.log, "memory", o.cfg)
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
func (o *opening) start() (*consensus, error) {
	conf := o.raftConfig()
	trans := o.cfg.Transport
	if trans == nil {
		_, trans = raft.NewInmemTransport(raft.ServerAddress(o.meta.ServerID))
	}
	beats := newHeartbeats(trans, o.disk)
	trans = beats
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
		b := boundary{o.snaps, o.disk}
		if err := b.newest(); err != nil {
			return nil, err
		}
		o.snaps = b
	}
	c := newConsensus(o.meta.ServerID, o.m, o.disk, trans, o.cfg.Peers)
	beats.done = c.gone
	ready := make(chan struct{}) // closed when c.raft is set
	o.m.tell, o.m.lost = c.settled, c.out.lost
	r, err := raft.NewRaft(conf, &fsm{m: o.m, mark: o.mark, applied: func(index, number uint64) {
		<-ready
		c.entered(index, number)
	}}, o.logs, o.stable, o.snaps, trans)
	if err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	c.raft = r
	close(ready)
	c.relay(beats)
	if o.disk != nil {
		o.disk.live.Store(true) // from here on it is Raft's goroutine that writes
		if !o.cfg.leaderFirst {
			o.disk.overlap.Store(&overlap{may: c.followed, failed: c.stepDown})
		}
	}
	c.start()
	if err := o.lead(c); err != nil {
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
	// Raft never answers what is left in a buffered queue when it ends, and
	// Close waits for every answer. Batches are full before they get there.
	conf.BatchApplyCh = false
	conf.TrailingLogs = trailingLogs
	conf.SnapshotThreshold = 1 << 62 // Run decides when
	conf.NoSnapshotRestoreOnStart = true
	conf.CommitTimeout = commitTimeout
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = raftLogger(o.cfg.Logger)
	return conf
}

// lead lets a single voter stand for election without waiting for a leader
// nobody else can be, and returns when its log is replayed.
func (o *opening) lead(c *consensus) error {
	rc := c.raft.ReloadableConfig()
	rc.HeartbeatTimeout, rc.ElectionTimeout = o.cfg.HeartbeatTimeout, o.cfg.HeartbeatTimeout
	if err := c.raft.ReloadConfig(rc); err != nil {
		return err
	}
	if c.sole() {
		if err := o.awaitLeader(c); err != nil {
			return err
		}
	}
	if o.disk != nil {
		o.disk.warm.Store(nil)
	}
	if o.dir != nil {
		return o.dir.commit()
	}
	return nil
}

// awaitLeader returns when this peer leads and has applied its whole log.
func (o *opening) awaitLeader(c *consensus) error {
	timeout := time.NewTimer(electionPatience)
	defer timeout.Stop()
	look := time.NewTicker(faultInterval)
	defer look.Stop()
	for {
		changed := c.lead.next()
		_, _, moved := c.m.reach.next()
		if c.leading() {
			return nil
		}
		if h := o.m.halted.Load(); h != nil {
			return *h
		}
		select {
		case <-changed:
		case <-moved:
		case <-look.C:
			if err := c.refused(); err != nil {
				return err
			}
		case <-timeout.C:
			return fmt.Errorf("%w: not elected within %v", ErrNoLeader, electionPatience)
		}
	}
}
