package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/leader/apiservers"
	"github.com/balsahq/balsa/raftstore/member"
	"github.com/balsahq/balsa/raftstore/peer"
)

// farewell bounds how long gossip takes to say that this machine stops.
const farewell = time.Second

// Why a server stops that was not told to.
var (
	errStale = errors.New("the cluster was begun anew from another server")
	errLeft  = errors.New("this server has left the cluster")
)

// startPort opens the one TCP port and what peers say over it.
func (s *server) startPort() error {
	me := s.member.Get()
	own, err := s.pki.Peer(me.ServerID)
	if err != nil {
		return err
	}
	s.dialer = cluster.NewDialer(own, s.pki.Pool, s.resolve)
	s.network, err = peer.New(peer.Config{
		ServerID: me.ServerID, ClusterID: me.ClusterID,
		Generation:   func() int64 { return s.member.Get().Generation },
		OnGeneration: s.outdated,
		Certificate:  func() (*tls.Certificate, error) { return own.GetCertificate(nil) },
		Roots:        s.pki.Pool,
		Resolve:      s.resolve, Logger: s.log,
	})
	if err != nil {
		return err
	}
	show, err := s.pki.PortCertificate(me.ServerID)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(s.cfg.BindAddress, strconv.Itoa(s.cfg.Port)))
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	version, suites := s.cfg.TLS.Policy()
	s.port, err = peer.NewPort(peer.PortConfig{
		MinVersion: version, CipherSuites: suites,
		Listener: listener, Certificate: show, Roots: s.pki.Pool, Hints: s.clientHints, Logger: s.log,
		MaxPerUser: s.cfg.API.MaxStreams + 96, // a client may have a connection for each of its watches
	})
	if err != nil {
		listener.Close()
		return err
	}
	s.network.Attach(s.port)
	return nil
}

// outdated hears that a peer is of a newer generation. This server's data was
// given up when the cluster was begun anew: it stops, lets go of it and comes
// back as a server without any.
func (s *server) outdated(remoteID string, theirs int64) {
	select {
	case s.over <- fmt.Errorf("%w: server %.8s is of generation %d", errStale, remoteID, theirs):
	default:
	}
}

// resolve finds a server: by gossip, and before there is any by what was kept.
func (s *server) resolve(serverID string) (string, bool) {
	if g := s.gossip.Load(); g != nil {
		return g.Resolve(serverID)
	}
	addr, ok := membership.AddressBook(s.member.Get().Servers)[serverID]
	return addr, ok
}

// apiServers says where the API is served: at the addresses of the servers'
// records, which each writes itself, by those that are alive.
func (s *server) apiServers() apiservers.Source {
	gossip := s.gossip.Load()
	return apiservers.Source{Changed: s.liveness.Changed, List: func() []netip.AddrPort {
		own := s.store.ServerID()
		alive := map[string]bool{own: true}
		for _, m := range gossip.Members() {
			alive[m.ServerID] = alive[m.ServerID] || m.State == member.StateAlive
		}
		records := cluster.Records(s.store.View())
		if _, there := records[own]; !there { // it has only just begun
			records[own] = cluster.MemberRecord{Addresses: []string{s.address()}}
		}
		var out []netip.AddrPort
		for id, rec := range records {
			if !alive[id] || len(rec.Addresses) == 0 {
				continue
			}
			if a, err := netip.ParseAddrPort(rec.Addresses[0]); err == nil {
				out = append(out, a)
			}
		}
		return out
	}}
}

// address is where others reach this server's port.
func (s *server) address() string {
	return netip.AddrPortFrom(s.advertise, uint16(s.cfg.Port)).String()
}
