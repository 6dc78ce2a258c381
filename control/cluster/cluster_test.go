package cluster_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// raftState is the Raft configuration that the servers of a test share.
type raftState struct {
	mu      sync.Mutex
	servers []raftstore.Server
	leader  string
	changed chan struct{}
	harm    func() error // of AddLearner, once
}

func (r *raftState) lead(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = id
	close(r.changed)
	r.changed = make(chan struct{})
}

// peerStore is one server's store: the keys are one store's, the configuration is raftState's.
type peerStore struct {
	*raftstore.Store
	id   string
	raft *raftState
}

func (p peerStore) ServerID() string { return p.id }
func (p peerStore) Servers() ([]raftstore.Server, error) {
	p.raft.mu.Lock()
	defer p.raft.mu.Unlock()
	return slices.Clone(p.raft.servers), nil
}
func (p peerStore) Leader() (string, uint64) {
	p.raft.mu.Lock()
	defer p.raft.mu.Unlock()
	return p.raft.leader, 1
}
func (p peerStore) Leading() bool { id, _ := p.Leader(); return id == p.id }
func (p peerStore) LeaderChanged() <-chan struct{} {
	p.raft.mu.Lock()
	defer p.raft.mu.Unlock()
	return p.raft.changed
}

func (p peerStore) change(fn func(*raftState)) error {
	if !p.Leading() {
		return raftstore.ErrNotLeader
	}
	p.raft.mu.Lock()
	defer p.raft.mu.Unlock()
	fn(p.raft)
	return nil
}
func (p peerStore) set(id string, voter bool) error {
	return p.change(func(r *raftState) {
		i := slices.IndexFunc(r.servers, func(s raftstore.Server) bool { return s.ID == id })
		if i < 0 {
			r.servers = append(r.servers, raftstore.Server{ID: id, Voter: voter})
		} else {
			r.servers[i].Voter = voter
		}
	})
}
func (p peerStore) AddLearner(_ context.Context, id string) error {
	p.raft.mu.Lock()
	harm := p.raft.harm
	p.raft.harm = nil
	there := slices.ContainsFunc(p.raft.servers, func(s raftstore.Server) bool { return s.ID == id })
	p.raft.mu.Unlock()
	if harm != nil {
		return harm()
	}
	if there {
		return nil
	}
	return p.set(id, false)
}
func (p peerStore) Promote(_ context.Context, id string) error { return p.set(id, true) }
func (p peerStore) Demote(_ context.Context, id string) error  { return p.set(id, false) }
func (p peerStore) Remove(_ context.Context, id string) error {
	return p.change(func(r *raftState) {
		r.servers = slices.DeleteFunc(r.servers, func(s raftstore.Server) bool { return s.ID == id })
	})
}
func (p peerStore) TransferLeadership(_ context.Context, to string) error {
	if !p.Leading() {
		return raftstore.ErrNotLeader
	}
	servers, _ := p.Servers()
	for _, s := range servers {
		if s.Voter && s.ID != p.id && (to == "" || s.ID == to) {
			p.raft.lead(s.ID)
			return nil
		}
	}
	return fmt.Errorf("nobody to hand over to")
}

// gossip is what a test says that gossip says.
type gossip struct {
	mu      sync.Mutex
	members []member.Member
	changed chan struct{}
}

// Members are the servers; of agents gossip says nothing.
func (g *gossip) Members() []member.Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.members), func(m member.Member) bool { return m.Role == member.RoleAgent })
}

// Presences are the agents that a test says something of.
func (g *gossip) Presences() (out []cluster.Presence) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		if m.Role == member.RoleAgent {
			out = append(out, cluster.Presence{Node: m.Name, Alive: m.State == member.StateAlive, Since: m.Since})
		}
	}
	return out
}

func (g *gossip) Heard(nodes []string) (heard []string) {
	for _, p := range g.Presences() {
		if p.Alive && slices.Contains(nodes, p.Node) {
			heard = append(heard, p.Node)
		}
	}
	return heard
}

func (g *gossip) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func (g *gossip) say(m member.Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = slices.DeleteFunc(g.members, func(o member.Member) bool { return o.Name == m.Name && o.ServerID == m.ServerID })
	g.members = append(g.members, m)
	close(g.changed)
	g.changed = make(chan struct{})
}

// lockedBuffer takes the logs of a whole test.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// world is a cluster in one process, on loopback, with real TLS.
type world struct {
	t       *testing.T
	store   *raftstore.Store
	raft    *raftState
	gossip  *gossip
	logs    *lockedBuffer
	log     *slog.Logger
	key     archive.Key
	mu      sync.Mutex
	clock   time.Duration // ahead of the world's
	peers   []*testServer
	secrets []string // that no log may show
}

type testServer struct {
	*cluster.Service
	id, name, addr string
	pki            *pki.Authority
	dialer         *cluster.Dialer
	left           chan struct{}
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.clock)
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock += d
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store, err := raftstore.Open(raftstore.Config{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	logs := &lockedBuffer{}
	w := &world{t: t, store: store, raft: &raftState{changed: make(chan struct{})}, gossip: &gossip{changed: make(chan struct{})},
		logs: logs, log: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})), key: archive.NewKey()}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		for _, secret := range append(w.secrets, w.key.Text()[20:40]) {
			if strings.Contains(logs.String(), secret) {
				t.Errorf("a log shows a secret:\n%s", logs)
			}
		}
	})
	if _, err := cluster.EnsureKeyring(t.Context(), w.first(store), time.Now()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) first(store *raftstore.Store) cluster.Store {
	return peerStore{Store: store, id: newID(), raft: w.raft}
}

func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return fmt.Sprintf("%x", b)
}

// start runs a server. bundle nil makes the first one.
func (w *world) start(name, id string, authority *pki.Authority) *testServer {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	s := &testServer{id: id, name: name, addr: listener.Addr().String(), pki: authority, left: make(chan struct{}, 1)}
	peer, err := authority.Peer(id)
	if err != nil {
		w.t.Fatal(err)
	}
	s.dialer = cluster.NewDialer(peer, authority.Pool, func(id string) (string, bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, p := range w.peers {
			if p.id == id {
				return p.addr, true
			}
		}
		return "", false
	})
	store := peerStore{Store: w.store, id: id, raft: w.raft}
	s.Service, err = cluster.New(cluster.Config{
		Store: store, PKI: authority, Members: w.gossip, Nodes: w.gossip, Name: name, Version: "v0.3.0", Address: func() string { return s.addr },
		Settings:    cluster.Settings{ServiceCIDR: "10.96.0.0/16", ClusterCIDR: "10.244.0.0/16", ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local", GossipPort: 7946},
		RecoveryKey: w.key, DialServer: s.dialer.Dial, SpoolDir: w.t.TempDir(), Now: w.now, Logger: w.log,
		Left: func() { s.left <- struct{}{} }, APINames: []string{"api.example.com", "192.0.2.250"},
		Virtual: func() (func(netip.Addr) bool, error) {
			return func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.200") }, nil
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.serve(s, listener)
	w.mu.Lock()
	w.peers = append(w.peers, s)
	w.mu.Unlock()
	w.gossip.say(member.Member{Meta: member.Meta{ServerID: id, Name: name, Role: member.RoleServer, APIAddr: s.addr, Version: "v0.3.0", Protocol: 1, Generation: 1}, Addr: "127.0.0.1:7946", State: member.StateAlive, Since: time.Now()})
	return s
}

func (w *world) serve(s *testServer, listener net.Listener) {
	certificate, err := s.pki.PortCertificate(s.id)
	if err != nil {
		w.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, GetCertificate: certificate, ClientAuth: tls.RequestClientCert,
	})))
	s.Register(server)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() {
		cancel()
		server.Stop()
		_ = s.dialer.Close()
		wg.Wait()
	})
}

func (w *world) authority(dir string) *pki.Authority {
	w.t.Helper()
	a, err := pki.Open(pki.Config{Dir: dir, Now: w.now, Logger: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// form makes the first server, which leads.
func (w *world) form() *testServer { return w.formIn(w.t.TempDir()) }

// formIn is form with the server's keys in a directory.
func (w *world) formIn(dir string) *testServer {
	id := newID()
	s := w.start("s1", id, w.authority(dir))
	w.raft.mu.Lock()
	w.raft.servers = []raftstore.Server{{ID: id, Voter: true}}
	w.raft.mu.Unlock()
	w.raft.lead(id)
	until(w.t, "the first server has recorded itself", func() bool { return len(cluster.Records(w.store.View())) == 1 })
	return s
}

// as is a client with a certificate; nil is nobody.
func (w *world) as(s *testServer, cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error)) clusterpb.ClusterClient {
	w.t.Helper()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: s.pki.Pool(), GetClientCertificate: cert, ServerName: "kubernetes", Time: w.now,
	})))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return clusterpb.NewClusterClient(conn)
}

func (w *world) admin(s *testServer) clusterpb.ClusterClient {
	return w.as(s, s.pki.Admin().GetClientCertificate)
}

func (w *world) token(s *testServer, server bool, ttl time.Duration) string {
	w.t.Helper()
	role := clusterpb.Role_ROLE_AGENT
	if server {
		role = clusterpb.Role_ROLE_SERVER
	}
	answer, err := w.admin(s).CreateToken(w.t.Context(), &clusterpb.CreateTokenRequest{Role: role, TtlSeconds: int64(ttl / time.Second), Description: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.secrets = append(w.secrets, answer.Token[strings.LastIndexByte(answer.Token, '.')+1:])
	return answer.Token
}

// replacing is a token with which an agent takes the name of another.
func (w *world) replacing(s *testServer, name string) string {
	w.t.Helper()
	answer, err := w.admin(s).CreateToken(w.t.Context(), &clusterpb.CreateTokenRequest{Role: clusterpb.Role_ROLE_AGENT, Replaces: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.Token
}

func (w *world) options(token string, server bool, name string, addrs ...string) join.Options {
	o := join.Options{Addrs: addrs, Token: token, Dir: w.t.TempDir(), Name: name, Server: server, Version: "v0.3.0", Now: w.now, Logger: w.log}
	if server {
		o.Addresses = []string{"127.0.0.1:1"}
	}
	return o
}

// grow joins a server and starts it.
func (w *world) grow(via *testServer, name string) *testServer {
	w.t.Helper()
	o := w.options(w.token(via, true, 0), true, name, via.addr)
	r, err := join.Join(w.t.Context(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.start(name, r.ServerID, w.authority(filepath.Join(o.Dir, "tls")))
}

func wantCode(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code && code != codes.OK || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v (%v), want %v with %q", err, status.Code(err), code, text)
	}
}

func newCSR(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// until polls a condition for at most a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute: " + what)
		}
		<-tick.C
	}
}
