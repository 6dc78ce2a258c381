package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// Identity is whose data a directory holds.
type Identity struct {
	ClusterID, ServerID string
	// Generation counts how often the cluster was begun anew from one survivor.
	Generation int64
	// Joined: this peer was added to a cluster by others.
	Joined bool
}

// ReadIdentity says whose data dir holds, without opening it: fs.ErrNotExist
// when it holds none yet.
func ReadIdentity(dir string) (Identity, error) {
	d := &dataDir{path: dir}
	if err := d.readMeta(); err != nil {
		return Identity{}, err
	}
	if d.new {
		return Identity{}, &fs.PathError{Op: "read", Path: d.metaPath(), Err: fs.ErrNotExist}
	}
	return Identity{ClusterID: d.meta.ClusterID, ServerID: d.meta.ServerID, Generation: d.meta.Generation, Joined: d.meta.Joined}, nil
}

// NewID makes an identity for a cluster or a server: 32 hexadecimal digits.
func NewID() string { return newID() }

// Discard moves the data in dir aside, to dir.old, replacing what was moved there
// before: the cluster was begun anew without this peer, and its data is of no
// more use but to somebody who looks for what was lost. Nobody may have it open.
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

// Reset makes the peer whose data lies in cfg.Dir the only server of its
// cluster, with everything its log holds, and begins a new generation: peers of
// the old one are refused until they give their data up. For when a quorum is
// lost for good. The store must not be open.
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
		err = guard(o.alone)
	}
	if err != nil {
		return Identity{}, errors.Join(err, o.abandon())
	}
	m := o.meta
	return Identity{ClusterID: m.ClusterID, ServerID: m.ServerID, Generation: m.Generation}, o.abandon()
}

// alone rewrites the Raft configuration, then the generation: a crash in
// between leaves a cluster of one in the old generation, and Reset may be run
// again.
func (o *opening) alone() error {
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
