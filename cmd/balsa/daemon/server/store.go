package server

import (
	"errors"
	"io/fs"
	"os"

	"github.com/balsahq/balsa/raftstore"
)

// openStore opens the cluster's objects.
func (s *server) openStore() error {
	if err := objectsMissing(s.cfg); err != nil {
		return err
	}
	me := s.member.Get()
	_, err := raftstore.ReadIdentity(s.cfg.StoreDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.store, err = raftstore.Open(raftstore.Config{
		Dir: s.cfg.StoreDir(), ClusterID: me.ClusterID, ServerID: me.ServerID, Generation: me.Generation,
		Join: len(me.Servers) > 0, Transport: s.network.Transport(), Peers: s.network.Peers(), Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.network.Serve(s.store)
	if err := os.WriteFile(s.cfg.ClusterIDFile(), []byte(me.ClusterID+"\n"), 0o600); err != nil {
		return errors.Join(err, s.store.Close())
	}
	return nil
}
