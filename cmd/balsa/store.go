package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/balsahq/balsa/raftstore"
)

// clusterIDFile tells that this server has had objects: it is written when the
// store was opened for the first time, and refuses to begin anew where objects
// were.
func (c *config) clusterIDFile() string { return filepath.Join(c.serverDir(), "cluster-id") }

// objectsMissing refuses a start on an empty store where there was one.
func objectsMissing(cfg *config) error {
	if _, err := os.Stat(cfg.clusterIDFile()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if entries, err := os.ReadDir(cfg.storeDir()); len(entries) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("the objects of this cluster are missing: %s is empty; put them back, or remove %s to begin with an empty cluster", cfg.storeDir(), cfg.serverDir())
	}
	return nil
}

// openStore opens the cluster's objects.
func (s *server) openStore() error {
	if err := objectsMissing(s.cfg); err != nil {
		return err
	}
	me := s.member.get()
	_, err := raftstore.ReadIdentity(s.cfg.storeDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.store, err = raftstore.Open(raftstore.Config{
		Dir: s.cfg.storeDir(), ClusterID: me.ClusterID, ServerID: me.ServerID, Generation: me.Generation,
		Join: len(me.Servers) > 0, Transport: s.network.Transport(), Peers: s.network.Peers(), Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.network.Serve(s.store)
	if err := os.WriteFile(s.cfg.clusterIDFile(), []byte(me.ClusterID+"\n"), 0o600); err != nil {
		return errors.Join(err, s.store.Close())
	}
	return nil
}
