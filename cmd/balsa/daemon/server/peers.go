package server

import (
	"context"
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

// leaveTimeout bounds the time in which gossip tells the other servers that this one stops.
const leaveTimeout = time.Second

// Reasons for which a server stops by itself.
var (
	errStale = errors.New("the cluster was reset on another server")
	errLeft  = errors.New("this server has left the cluster")
)

// startPort listens on the server's TCP port and creates the transport between peers.
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
		OnGeneration: s.onNewerGeneration,
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
		return fmt.Errorf("cannot listen for the API: %w", err)
	}
	version, suites := s.cfg.TLS.Policy()
	s.port, err = peer.NewPort(peer.PortConfig{
		MinVersion: version, CipherSuites: suites,
		Listener: listener, Certificate: show, Roots: s.pki.Pool, Hints: s.clientHints, Logger: s.log,
		MaxPerUser: s.cfg.API.MaxStreams + 96, // a client may use a connection for each of its watches
	})
	if err != nil {
		listener.Close()
		return err
	}
	s.network.Attach(s.port)
	return nil
}

// onNewerGeneration is called when a peer has a newer generation: the cluster was reset
// without the data of this server. The server stops, discards its data and joins again
// (rejoin.go).
func (s *server) onNewerGeneration(remoteID string, theirs int64) {
	select {
	case s.stopReason <- fmt.Errorf("%w: server %.8s is of generation %d", errStale, remoteID, theirs):
	default:
	}
}

// resolve returns the address of a server by its ID: from gossip or, before gossip has started, from the saved record.
func (s *server) resolve(serverID string) (string, bool) {
	if g := s.gossip.Load(); g != nil {
		return g.Resolve(serverID)
	}
	addr, ok := membership.AddressBook(s.member.Get().Servers)[serverID]
	return addr, ok
}

// apiServers lists the addresses of the live servers' APIs, for the Service
// kubernetes. Each server writes its address into its record.
func (s *server) apiServers() apiservers.Source {
	gossip := s.gossip.Load()
	return apiservers.Source{Changed: s.liveness.Changed, List: func() []netip.AddrPort {
		own := s.store.ServerID()
		alive := map[string]bool{own: true}
		for _, m := range gossip.Members() {
			alive[m.ServerID] = alive[m.ServerID] || m.State == member.StateAlive
		}
		records := cluster.Records(s.store.View())
		if _, there := records[own]; !there { // it has just started and has not written its record yet
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

// address returns the address at which other machines reach this server's port.
func (s *server) address() string {
	return netip.AddrPortFrom(s.advertise, uint16(s.cfg.Port)).String()
}

// dropStaleConnections closes connections to servers that are dead or have another address now.
func (s *server) dropStaleConnections(ctx context.Context) error {
	gossip, where := s.gossip.Load(), map[string]string{}
	for {
		changed := gossip.Changed()
		for _, m := range gossip.Members() {
			if m.Role != member.RoleServer || m.ServerID == s.store.ServerID() {
				continue
			}
			now := m.APIAddr
			if m.State != member.StateAlive {
				now = ""
			}
			if before, known := where[m.ServerID]; known && before != now {
				s.network.Drop(m.ServerID)
				s.dialer.Drop(m.ServerID)
			}
			where[m.ServerID] = now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s.dialer.Close()
		}
	}
}
