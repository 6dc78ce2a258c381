package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// Identity is the identity of a data directory.
type Identity struct {
	ClusterID, ServerID string
	// Generation counts how often the cluster was begun anew from one survivor.
	Generation int64
	// Joined: this peer was added to a cluster and did not begin one.
	Joined bool
	// Log is the kind of log that the directory began with.
	Log raftlog.Kind
}

func (d *dataDir) identity() Identity {
	return Identity{ClusterID: d.meta.ClusterID, ServerID: d.meta.ServerID, Generation: d.meta.Generation, Joined: d.meta.Joined, Log: d.logKind()}
}

// ReadIdentity returns the identity of the directory dir without opening the store: fs.ErrNotExist when it holds no data yet.
func ReadIdentity(dir string) (Identity, error) {
	d := &dataDir{path: dir}
	if err := d.readMeta(); err != nil {
		return Identity{}, err
	}
	if d.new {
		return Identity{}, &fs.PathError{Op: "read", Path: d.metaPath(), Err: fs.ErrNotExist}
	}
	return d.identity(), nil
}

// NewID returns a random identity for a cluster or a server: 32 hexadecimal digits.
func NewID() string { return newID() }

// Discard moves the data in dir to dir.old and removes what was there before. The cluster was begun anew without this peer, and the
// old data only helps an administrator who looks for lost writes. The store must not be open.
func Discard(dir string) (movedTo string, err error) {
	to := filepath.Clean(dir) + ".old"
	if err := os.RemoveAll(to); err != nil {
		return "", diskfile.Error(to, err)
	}
	if err := os.Rename(dir, to); err != nil {
		return "", diskfile.Error(dir, err)
	}
	return to, nil
}

// Reset makes the peer whose data lies in cfg.Dir the only server of its cluster, with everything its log holds, and begins a new
// generation: peers of the old generation are refused until they discard their data. It is for a quorum that is lost for good. The
// store must not be open.
func Reset(cfg Config) (Identity, error) {
	if err := cfg.Validate(); err != nil {
		return Identity{}, err
	}
	cfg.setDefaults()
	if _, err := ReadIdentity(cfg.Dir); err != nil {
		return Identity{}, err
	}
	o := &opening{cfg: &cfg, m: newMachine(newLessor())}
	err := guard(o.storage)
	if err == nil {
		err = guard(o.resetToSelf)
	}
	if err != nil {
		return Identity{}, errors.Join(err, o.abandon())
	}
	return o.dir.identity(), o.abandon()
}

// resetToSelf rewrites the Raft configuration, then the generation. A crash in between leaves a cluster of one in the old generation,
// and Reset may be run again.
func (o *opening) resetToSelf() error {
	conf := o.raftConfig()
	addr, trans := raft.NewInmemTransport(raft.ServerAddress(o.meta.ServerID))
	servers := raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: addr}}}
	if err := raft.RecoverCluster(conf, &fsm{m: o.m}, o.logs, o.stable, o.snaps, trans, servers); err != nil {
		return fmt.Errorf("reset %s: %w", o.dir.path, err)
	}
	if h := o.m.halted.Load(); h != nil {
		return *h
	}
	o.dir.meta.Format, o.dir.meta.Joined = dirVersion, false
	o.dir.meta.Generation++
	o.meta = o.dir.meta
	return o.dir.write()
}
