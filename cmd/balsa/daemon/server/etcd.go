package server

import (
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/etcd"
)

// etcdMembers returns the members of the cluster as etcd's API lists them.
func (s *server) etcdMembers() []etcd.Member {
	servers, err := s.store.Servers()
	if err != nil {
		return nil
	}
	records := cluster.Records(s.store.View())
	out := make([]etcd.Member, len(servers))
	for i, srv := range servers {
		m := etcd.Member{ServerID: srv.ID, Name: records[srv.ID].Name, Learner: !srv.Voter}
		if addr, ok := s.resolve(srv.ID); ok {
			m.ClientURLs, m.PeerURLs = []string{"https://" + addr}, []string{"https://" + addr}
		} else if srv.ID == s.store.ServerID() {
			m.ClientURLs, m.PeerURLs = []string{"https://" + s.address()}, []string{"https://" + s.address()}
		}
		out[i] = m
	}
	return out
}
