package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// checkLogKind returns an error when the store in dir began with another kind of log than the one that is asked for. The empty kind
// asks for none.
func checkLogKind(dir string, kind raftlog.Kind) error {
	id, err := raftstore.ReadIdentity(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case kind != "" && kind != id.Log:
		return fmt.Errorf("--raft-log=%s: %s began with %s, and a server keeps the log it began with; leave the flag out, or give --raft-log=%s", kind, dir, id.Log, id.Log)
	}
	return nil
}

// openStore opens this server's replica of the store. It runs from startStore on.
func (s *server) openStore() error {
	if err := checkObjectsPresent(s.cfg); err != nil {
		return err
	}
	me := s.member.Get()
	kind := raftlog.Kind(s.cfg.RaftLog)
	err := checkLogKind(s.cfg.StoreDir(), kind)
	if err != nil {
		return err
	}
	s.store, err = raftstore.Open(raftstore.Config{
		Dir: s.cfg.StoreDir(), ClusterID: me.ClusterID, ServerID: me.ServerID, Generation: me.Generation, LogKind: kind,
		Join: len(me.Servers) > 0, Transport: s.network.Transport(), Peers: s.network.Peers(), Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.network.Serve(s.store)
	showStore(s.store, &s.gossip)
	if err := os.WriteFile(s.cfg.ClusterIDFile(), []byte(me.ClusterID+"\n"), 0o600); err != nil {
		return errors.Join(err, s.store.Close())
	}
	return nil
}
