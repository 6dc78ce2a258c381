package server

import (
	"context"
	"errors"

	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/raftstore"
)

// followRecords watches the servers' records in the store. It saves their addresses,
// with which the next start finds the other servers before gossip does, and writes the
// kubeconfig.
func (s *server) followRecords(ctx context.Context) error {
	for {
		v := s.store.View()
		records := cluster.Records(v)
		s.recordsChanged.fire()
		book := map[string]string{}
		for id, rec := range records {
			if len(rec.Addresses) > 0 {
				book[id] = rec.Addresses[0]
			}
		}
		if len(book) > 0 {
			s.gossip.Load().Remember(book)
			if err := s.member.SetServers(book); err != nil {
				s.log.Warn("cannot save the addresses of the servers; the next start uses older ones", "err", err)
			}
			if err := s.writeKubeconfig(records); err != nil {
				s.log.Warn("cannot write the kubeconfig; it stays as it was", "err", err)
			}
		}
		w, err := s.store.Watch(raftstore.WatchRequest{Key: cluster.MembersPrefix, RangeEnd: raftstore.PrefixEnd(cluster.MembersPrefix), StartRevision: v.Revision() + 1})
		if err == nil {
			_, err = w.Next(ctx)
			w.Close()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, raftstore.ErrOverrun) && !errors.Is(err, raftstore.ErrCompacted):
			return err
		}
	}
}
