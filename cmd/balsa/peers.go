package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/control/cork"
	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/apiservers"
	"github.com/balsahq/balsa/raftstore"
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
	me := s.member.get()
	own, err := s.pki.Peer(me.ServerID)
	if err != nil {
		return err
	}
	s.dialer = cluster.NewDialer(own, s.pki.Pool(), s.resolve)
	s.network, err = peer.New(peer.Config{
		ServerID: me.ServerID, ClusterID: me.ClusterID,
		Generation:   func() int64 { return s.member.get().Generation },
		OnGeneration: s.outdated,
		Certificate:  func() (*tls.Certificate, error) { return own.GetCertificate(nil) },
		Roots:        func() *x509.CertPool { return s.pki.Pool() },
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
	version, suites := s.cfg.TLS.policy()
	s.port, err = peer.NewPort(peer.PortConfig{
		MinVersion: version, CipherSuites: suites,
		Listener: cork.Listener{Listener: listener}, Certificate: show, Roots: func() *x509.CertPool { return s.pki.Pool() }, Hints: s.clientHints, Logger: s.log,
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
	addr, ok := addressBook(s.member.get().Servers)[serverID]
	return addr, ok
}

// startGossip takes part in gossip with the keys that the store holds; a server
// that cannot read its store yet has kept them.
func (s *server) startGossip(ctx context.Context) error {
	me := s.member.get()
	if len(me.GossipKeys) == 0 {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		ring, err := cluster.EnsureKeyring(ctx, s.store, time.Now())
		if err != nil {
			return fmt.Errorf("gossip keys: %w", err)
		}
		if err := s.member.keepKeys(ring.Keys); err != nil {
			return err
		}
		me = s.member.get()
	}
	gossip, err := newGossip(s.cfg, member.Meta{
		ServerID: me.ServerID, Role: member.RoleServer, APIAddr: s.address(), Version: version,
		Protocol: cluster.Protocol, Generation: me.Generation, ClusterID: me.ClusterID,
	}, s.nodeIP, me.GossipKeys, func() []string { return seeds(s.member.get()) }, s.log)
	if err != nil {
		return err
	}
	gossip.Remember(addressBook(me.Servers))
	s.gossip.Store(gossip)
	s.parts.start("gossip", runGossip(gossip))
	return nil
}

func newGossip(cfg *config, meta member.Meta, ip netip.Addr, keys [][]byte, seeds func() []string, log *slog.Logger) (*member.Gossip, error) {
	bind := cfg.BindAddress
	if addr, err := netip.ParseAddr(bind); err == nil && addr.IsUnspecified() {
		bind = ""
	}
	return member.New(member.Config{
		Name: cfg.NodeName, Meta: meta, BindAddr: bind, BindPort: cfg.GossipPort, AdvertiseAddr: ip.String(),
		Keys: keys, Seeds: seeds, Logger: log,
	})
}

// runGossip is a part that says goodbye before it goes silent.
func runGossip(g *member.Gossip) func(context.Context) error {
	return func(ctx context.Context) error {
		running, silence := context.WithCancel(context.WithoutCancel(ctx))
		defer silence()
		ended := make(chan error, 1)
		go func() { ended <- fault.Contain("gossip", func() error { return g.Run(running) }) }()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
		}
		_ = g.Leave(farewell) // who does not hear it finds out
		silence()
		return <-ended
	}
}

// seeds are the gossip addresses of the servers that are known.
func seeds(r join.Result) []string {
	var out []string
	if r.GossipAddr != "" {
		out = append(out, r.GossipAddr)
	}
	for id, addr := range addressBook(r.Servers) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil || id == r.ServerID {
			continue
		}
		out = append(out, net.JoinHostPort(host, strconv.Itoa(r.Settings.GossipPort)))
	}
	return out
}

// startMembers keeps what follows from who is alive and what the store says of
// the members: connections, addresses, keys, votes.
func (s *server) startMembers() error {
	gossip := s.gossip.Load()
	autopilot, err := member.NewAutopilot(member.AutopilotConfig{
		Store: s.store, Members: gossip.Members, MembersChanged: gossip.Changed, Stats: s.stats, Logger: s.log,
		Removed: func(id string) {
			gossip.Forget(id)
			s.network.Drop(id)
			s.dialer.Drop(id)
		},
	})
	if err != nil {
		return err
	}
	s.parts.keep("autopilot", autopilot.Run)
	s.parts.keep("gossip keys", func(ctx context.Context) error {
		return cluster.FollowKeyring(ctx, s.store, func(k cluster.Keyring) error {
			if err := s.member.keepKeys(k.Keys); err != nil {
				return err
			}
			if err := gossip.Rekey(k.Keys[0], k.Keys); err != nil && !errors.Is(err, member.ErrNotRunning) {
				return err
			}
			return nil
		})
	})
	s.parts.keep("address book", s.followRecords)
	s.parts.keep("connections", s.followMembers)
	return nil
}

// stats asks another server how far it is.
func (s *server) stats(ctx context.Context, serverID string) (member.Stats, error) {
	conn, err := s.dialer.Dial(ctx, serverID)
	if err != nil {
		return member.Stats{}, err
	}
	a, err := clusterpb.NewClusterClient(conn).Stats(ctx, &clusterpb.StatsRequest{})
	if err != nil {
		return member.Stats{}, err
	}
	p := a.GetProgress()
	return member.Stats{Term: p.GetTerm(), LastIndex: p.GetLastIndex(), AppliedIndex: p.GetAppliedIndex(),
		LastContact: time.Duration(p.GetLastContactMs()) * time.Millisecond, Leading: a.GetLeading()}, nil
}

// followRecords keeps what follows from the servers' records in the store: the
// addresses, for a start at which nobody else is heard, and the kubeconfig.
func (s *server) followRecords(ctx context.Context) error {
	for {
		v := s.store.View()
		records := cluster.Records(v)
		s.recorded.fire()
		book := map[string]string{}
		for id, rec := range records {
			if len(rec.Addresses) > 0 {
				book[id] = rec.Addresses[0]
			}
		}
		if len(book) > 0 {
			s.gossip.Load().Remember(book)
			if err := s.member.learn(book); err != nil {
				s.log.Warn("addresses of the servers are not kept", "error", err)
			}
			if err := s.writeKubeconfig(records); err != nil {
				s.log.Warn("the kubeconfig is as it was", "error", err)
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

// followAdmin writes the kubeconfig anew when the administrator's certificate has been renewed.
func (s *server) followAdmin(ctx context.Context) error {
	for {
		changed := s.pki.Changed()
		if err := s.writeKubeconfig(cluster.Records(s.store.View())); err != nil {
			s.log.Warn("the kubeconfig keeps the certificate it had", "err", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// writeKubeconfig writes the administrator's, with a context for each server.
func (s *server) writeKubeconfig(records map[string]cluster.MemberRecord) error {
	s.kubeconfig.Lock()
	defer s.kubeconfig.Unlock()
	var all []kubeconfigServer
	for _, rec := range records {
		if len(rec.Addresses) > 0 {
			all = append(all, kubeconfigServer{Name: rec.Name, URL: "https://" + rec.Addresses[0]})
		}
	}
	text, err := kubeconfigOf(s.localURL(), all, s.pki.CA(), s.pki.Admin().CertPEM(), s.pki.Admin().KeyPEM())
	if err != nil {
		return err
	}
	return writeKubeconfig(s.cfg.kubeconfigPath(), text)
}

// followMembers lets go of connections to servers that are gone or elsewhere.
func (s *server) followMembers(ctx context.Context) error {
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

// resync gives this server's data up and asks to be a member again, as the same
// server: it proves itself by its certificate.
func (s *server) resync(ctx context.Context) error {
	me := s.member.get()
	own, err := s.pki.Peer(me.ServerID)
	if err != nil {
		return err
	}
	moved, err := raftstore.Discard(s.cfg.storeDir())
	if err != nil {
		return err
	}
	s.log.Info("the old data was moved aside", "to", moved)
	if err := os.Remove(s.cfg.clusterIDFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	client, err := join.NewClient(join.ClientConfig{
		Servers: func() []string { return slices.Collect(maps.Values(addressBook(me.Servers))) },
		Roots:   s.pki.Pool(), Certificate: own.GetClientCertificate, Logger: s.log,
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
		Csr: csr, Version: version, Protocol: cluster.Protocol}
	for {
		var answer *clusterpb.JoinResponse
		err := client.Do(ctx, func(ctx context.Context, c clusterpb.ClusterClient) (err error) {
			answer, err = c.Join(ctx, req)
			return err
		})
		if err == nil && answer.Generation > me.Generation {
			return s.member.update(func(r *join.Result) bool {
				r.Generation, r.Servers, r.GossipKeys = answer.Generation, answer.Servers, answer.Gossip.GetKeys()
				return true
			})
		}
		s.log.Warn("not a member again yet; trying on", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
}
