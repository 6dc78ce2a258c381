package server

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
)

// rejoin moves this server's data aside and joins the cluster again with the same server
// ID, which its certificate proves. It tries until it is a member or ctx ends.
func (s *server) rejoin(ctx context.Context) error {
	me := s.member.Get()
	own, err := s.pki.Peer(me.ServerID)
	if err != nil {
		return err
	}
	moved, err := raftstore.Discard(s.cfg.StoreDir())
	if err != nil {
		return err
	}
	s.log.Info("the data of the old generation was moved aside", "to", moved)
	if err := os.Remove(s.cfg.ClusterIDFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	client, err := join.NewClient(join.ClientConfig{
		Servers: func() []string { return slices.Collect(maps.Values(membership.AddressBook(me.Servers))) },
		Roots:   s.pki.Pool, Certificate: own.GetClientCertificate, Logger: s.log,
	})
	if err != nil {
		return err
	}
	defer client.Close()
	keys, err := pki.OpenCredentials(pki.CredentialsConfig{Path: own.Path(), Logger: s.log})
	if err != nil {
		return err
	}
	csr, err := keys.RequestAgain()
	if err != nil {
		return err
	}
	req := &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_SERVER, Name: s.cfg.NodeName, ServerId: me.ServerID, Addresses: []string{s.address()},
		Csr: csr, Version: s.cfg.Version, Protocol: cluster.Protocol}
	for {
		var answer *clusterpb.JoinResponse
		err := client.Do(ctx, func(ctx context.Context, c clusterpb.ClusterClient) (err error) {
			answer, err = c.Join(ctx, req)
			return err
		})
		if err == nil && answer.Generation > me.Generation {
			return s.member.Update(func(r *join.Result) bool {
				r.Generation, r.Servers, r.GossipKeys = answer.Generation, answer.Servers, answer.Gossip.GetKeys()
				return true
			})
		}
		s.log.Warn("cannot join the cluster again yet; the next try is in 2 s", "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
}
