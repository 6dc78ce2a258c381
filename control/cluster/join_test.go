package cluster_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/control/cluster/token"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

func TestThreeServersAndAnAgentJoin(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	s3 := w.grow(s2, "s3") // asked of one that does not lead
	if pki.Pin(s3.pki.CACertificate().Raw) != s1.Pin() {
		t.Fatal("another CA")
	}
	servers, err := peerStore{raft: w.raft}.Servers()
	if err != nil || len(servers) != 3 || servers[1] != (raftstore.Server{ID: s2.id}) || servers[2] != (raftstore.Server{ID: s3.id}) {
		t.Fatalf("%+v, %v", servers, err)
	}
	o := w.options(w.token(s3, false, 0), false, "a1", "127.0.0.1:1", s3.addr) // the first address is dead
	o.Addresses = []string{"192.0.2.7"}
	r, err := join.Join(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Settings.ClusterDNS != "10.96.0.10" || len(r.Servers) != 3 || r.Servers[0].Address != s3.addr || len(r.GossipKeys) != 0 || r.GossipAddr != "" || r.Generation != 1 {
		t.Fatalf("%+v", r)
	}
	if again, err := join.Load(o.Dir); err != nil || again.ClusterID != w.store.ClusterID() {
		t.Fatalf("%+v, %v", again, err)
	}
	if _, err := os.Stat(join.RecoveryKeyFile(o.Dir)); !errors.Is(err, os.ErrNotExist) {
		t.Error("an agent has the recovery key")
	}
	if _, err := os.Stat(filepath.Join(o.Dir, "tls")); !errors.Is(err, os.ErrNotExist) {
		t.Error("an agent has the cluster's keys")
	}
	agent, err := join.OpenAgent(o.Dir, w.now, w.log)
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Serving.Certificate().VerifyHostname("192.0.2.7"); err != nil {
		t.Error(err)
	}
	list, err := w.as(s1, agent.Client.GetClientCertificate).Members(t.Context(), &clusterpb.MembersRequest{})
	if err != nil || len(list.Members) != 4 || list.LeaderId != s1.id {
		t.Fatalf("%v, %v", list, err)
	}
	for _, m := range list.Members[:3] {
		if m.Lag < 0 || m.State != clusterpb.State_STATE_ALIVE || m.Leader != (m.ServerId == s1.id) {
			t.Errorf("%v", m)
		}
	}
}

func TestJoiningAgainChangesNothing(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	o := w.options(w.token(s1, true, 0), true, "s2", s1.addr)
	w.raft.mu.Lock()
	w.raft.harm = func() error { return raftstore.ErrDiskFull } // recorded, then the leader's disk was full
	w.raft.mu.Unlock()
	if _, err := join.Join(t.Context(), o); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("%v", err)
	}
	first, err := join.Join(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	second, err := join.Join(t.Context(), o) // its process died after the answer
	if err != nil || second.ServerID != first.ServerID {
		t.Fatalf("%v, %v", second, err)
	}
	a := w.options(w.token(s1, false, 0), false, "a1", s1.addr)
	for range 2 {
		if _, err := join.Join(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(a.Dir, "member.json")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTokensThatDoNotAdmit(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	good := w.token(s1, false, time.Hour)
	parsed, err := token.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	try := func(text string, server bool) error {
		_, err := join.Join(t.Context(), w.options(text, server, "x", s1.addr))
		return err
	}
	wrong := good[:len(good)-4] + map[bool]string{true: "1111", false: "0000"}[strings.HasSuffix(good, "0000")]
	w.secrets = append(w.secrets, wrong[len(wrong)-32:])
	wantCode(t, try(wrong, false), codes.Unauthenticated, "secret of token "+parsed.ID+" is wrong")
	unknown, err := token.New(false, s1.Pin())
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, try(unknown.Text(), false), codes.Unauthenticated, "balsa token create")
	wantCode(t, try(good, true), codes.OK, "balsa agent --join")
	wantCode(t, try("balsa1.nonsense", false), codes.OK, "not a join token")

	// A token whose text says server while the cluster keeps it as an agent's.
	forged := strings.Replace(good, ".a.", ".s.", 1)
	wantCode(t, try(forged, true), codes.Unauthenticated, "is for joining as agent")

	revoked := w.token(s1, false, time.Hour)
	p, err := token.Parse(revoked)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin(s1).RevokeToken(t.Context(), &clusterpb.RevokeTokenRequest{Id: p.ID}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, try(revoked, false), codes.Unauthenticated, "revoked")
	w.advance(2 * time.Hour)
	wantCode(t, try(good, false), codes.Unauthenticated, "expired at")
	if n := strings.Count(w.logs.String(), "a machine failed to join"); n < 1 || n > 2 {
		t.Errorf("logged %d times:\n%s", n, w.logs)
	}
}

func TestAStormOfFailedJoinsIsCut(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	bad, err := token.New(false, s1.Pin())
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	client := w.as(s1, nil)
	for range 15 {
		_, err := client.Join(t.Context(), &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_AGENT, Name: "x", Token: bad.Text(), Csr: newCSR(t), Protocol: 1})
		if status.Code(err) == codes.ResourceExhausted {
			refused++
		}
	}
	if refused != 5 || strings.Count(w.logs.String(), "failed to join") != 1 {
		t.Fatalf("%d of 15 refused unread:\n%s", refused, w.logs)
	}
	w.advance(2 * time.Minute)
	if _, err := join.Join(t.Context(), w.options(w.token(s1, false, 0), false, "x", s1.addr)); err != nil {
		t.Fatalf("after the storm: %v", err)
	}
}

func TestAnotherClustersServerIsRefusedBeforeTheSecretLeaves(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	s1, other := a.form(), b.form()
	_, err := join.Join(t.Context(), a.options(a.token(s1, true, 0), true, "x", other.addr))
	if !errors.Is(err, pki.ErrPin) || !strings.Contains(err.Error(), s1.Pin()) || !strings.Contains(err.Error(), other.Pin()) {
		t.Fatalf("got %v, want both pins", err)
	}
	if b.logs.String() != "" {
		t.Errorf("the other cluster heard something: %s", b.logs)
	}
	// Forced past the pin, the token is refused as another cluster's.
	_, err = b.as(other, nil).Join(t.Context(), &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_AGENT, Name: "x", Token: a.token(s1, false, 0), Csr: newCSR(t), Protocol: 1})
	wantCode(t, err, codes.Unauthenticated, "of another cluster")
	// The administrator of one is nobody in the other.
	_, err = a.as(&testServer{addr: other.addr, pki: other.pki}, s1.pki.Admin().GetClientCertificate).Members(t.Context(), &clusterpb.MembersRequest{})
	wantCode(t, err, codes.Unauthenticated, "not of this cluster")
}

func TestOneNameBelongsToOneMachine(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	server, agent := w.token(s1, true, 0), w.token(s1, false, 0)
	_, err := join.Join(t.Context(), w.options(server, true, "s2", s1.addr))
	wantCode(t, err, codes.AlreadyExists, "alive under the name")
	_, err = join.Join(t.Context(), w.options(agent, false, "s2", s1.addr))
	wantCode(t, err, codes.AlreadyExists, "--node-name")

	// A member by another name: its directory was kept, its name changed.
	o := w.options(server, true, "s3", s1.addr)
	if _, err := join.Join(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	o.Name = "s4"
	_, err = join.Join(t.Context(), o)
	wantCode(t, err, codes.AlreadyExists, `member by the name "s3"`)
	// Joined, not yet seen by gossip: still its name.
	_, err = join.Join(t.Context(), w.options(server, true, "s3", s1.addr))
	wantCode(t, err, codes.AlreadyExists, "not been seen yet")

	// s2 dies: another machine may take its name.
	w.gossip.say(member.Member{Meta: member.Meta{ServerID: s2.id, Name: "s2", Role: member.RoleServer}, State: member.StateFailed})
	if _, err := join.Join(t.Context(), w.options(server, true, "s2", s1.addr)); err != nil {
		t.Error(err)
	}
}

func TestAnAgentsNameIsBoundToItsKey(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	agent := w.token(s1, false, 0)
	first := w.options(agent, false, "a1", s1.addr)
	if _, err := join.Join(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	alive := member.Member{Meta: member.Meta{Name: "a1", Role: member.RoleAgent}, Addr: "192.0.2.9:7946", State: member.StateAlive}
	w.gossip.say(alive)
	second := w.options(agent, false, "a1", s1.addr)
	second.Replace = true
	_, err := join.Join(t.Context(), second)
	wantCode(t, err, codes.AlreadyExists, "live node")
	alive.State = member.StateFailed
	w.gossip.say(alive)
	second.Replace = false
	_, err = join.Join(t.Context(), second)
	wantCode(t, err, codes.AlreadyExists, "--replace")
	second.Replace = true
	_, err = join.Join(t.Context(), second)
	wantCode(t, err, codes.AlreadyExists, "balsa token create --replace a1")
	second.Token = w.replacing(s1, "a2")
	_, err = join.Join(t.Context(), second)
	wantCode(t, err, codes.AlreadyExists, `replaces node "a2"`)
	second.Token = w.replacing(s1, "a1")
	if _, err := join.Join(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	third := w.options(second.Token, false, "a1", s1.addr)
	third.Replace = true
	_, err = join.Join(t.Context(), third)
	wantCode(t, err, codes.Unauthenticated, "used up")
	old, err := join.OpenAgent(first.Dir, w.now, w.log)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.as(s1, old.Client.GetClientCertificate).Renew(t.Context(), &clusterpb.RenewRequest{Csr: newCSR(t)})
	wantCode(t, err, codes.PermissionDenied, "another machine's")

	// Its certificate expired long ago: the name is still not free for whoever has a token.
	w.advance(400 * 24 * time.Hour)
	if _, err := s1.pki.Renew(); err != nil {
		t.Fatal(err)
	}
	_, err = join.Join(t.Context(), w.options(w.token(s1, false, 0), false, "a1", s1.addr))
	wantCode(t, err, codes.AlreadyExists, "balsa members remove a1")
	second.Token = w.token(s1, false, 0) // the machine itself, with its key
	if _, err := join.Join(t.Context(), second); err != nil {
		t.Fatal(err)
	}
}

func TestVersionsThatDoNotFit(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	for _, c := range []struct {
		version  string
		protocol int
		want     string // "" is admitted
	}{
		{"v0.3.9", 1, ""}, {"v0.4.0", 1, ""}, {"v0.2.0-rc.1", 1, ""}, {"dev", 1, ""}, {"v0.3.0", 2, ""},
		{"v0.5.0", 1, "upgrade the servers first"}, {"v1.0.0", 1, "upgrade the servers first"},
		{"v0.1.0", 1, "upgrade the joining machine first"}, {"v0.3.0", 3, "upgrade the servers first"}, {"dev", -1, "upgrade the joining machine"},
	} {
		o := w.options(w.token(s1, true, 0), true, "n"+strings.ToLower(strings.NewReplacer(".", "", "-", "").Replace(c.version))+map[bool]string{true: "x"}[c.protocol == 2], s1.addr)
		o.Version, o.Protocol = c.version, c.protocol
		_, err := join.Join(t.Context(), o)
		if c.want == "" && err != nil {
			t.Errorf("%s, protocol %d: %v", c.version, c.protocol, err)
		}
		if c.want != "" {
			wantCode(t, err, codes.FailedPrecondition, c.want)
		}
	}
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	text := w.token(s1, false, 0)
	serverText := w.token(s1, true, 0)
	base := func() *clusterpb.JoinRequest {
		return &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_AGENT, Name: "x", Token: text, Csr: newCSR(t), ServingCsr: newCSR(t), Protocol: 1}
	}
	client := w.as(s1, nil)
	for what, change := range map[string]func(*clusterpb.JoinRequest){
		"no role":         func(r *clusterpb.JoinRequest) { r.Role = 0 },
		"no name":         func(r *clusterpb.JoinRequest) { r.Name = "" },
		"reserved name":   func(r *clusterpb.JoinRequest) { r.Name = "kubernetes.default.svc" },
		"no request":      func(r *clusterpb.JoinRequest) { r.Csr = nil },
		"a loopback node": func(r *clusterpb.JoinRequest) { r.Addresses = []string{"127.0.0.1"} },
		"many addresses":  func(r *clusterpb.JoinRequest) { r.Addresses = make([]string, 1000) },
		"no server ID":    func(r *clusterpb.JoinRequest) { r.Role, r.Token = clusterpb.Role_ROLE_SERVER, serverText },
		"no address": func(r *clusterpb.JoinRequest) {
			r.Role, r.Token, r.ServerId = clusterpb.Role_ROLE_SERVER, serverText, newID()
		},
		"bad address": func(r *clusterpb.JoinRequest) {
			r.Role, r.Token, r.ServerId, r.Addresses = clusterpb.Role_ROLE_SERVER, serverText, newID(), []string{"host"}
		},
	} {
		r := base()
		change(r)
		if _, err := client.Join(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, taken := range []string{"10.96.0.1", "10.96.0.10", "10.244.1.1"} { // addresses that would let a node pretend to be another
		r := base()
		r.Addresses = []string{taken}
		if _, err := client.Join(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", taken, err)
		}
	}
}

// TestNamesAndAddressesOfOthersAreNotCertified: those of servers (their --tls-san too), of load balancers and of other nodes.
func TestNamesAndAddressesOfOthersAreNotCertified(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	victim := w.options(w.token(s1, false, 0), false, "victim", s1.addr)
	victim.Addresses = []string{"192.0.2.7"}
	if _, err := join.Join(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*join.Options){
		"a server's name":              func(o *join.Options) { o.Name = "s1" },
		"a name of --tls-san":          func(o *join.Options) { o.Name = "api.example.com" },
		"an address of --tls-san":      func(o *join.Options) { o.Addresses = []string{"192.0.2.250"} },
		"a load balancer's address":    func(o *join.Options) { o.Addresses = []string{"192.0.2.200"} },
		"another node's address":       func(o *join.Options) { o.Addresses = []string{"192.0.2.7"} },
		"its own and another node's":   func(o *join.Options) { o.Addresses = []string{"192.0.2.8", "192.0.2.7"} },
		"another node's, written 4in6": func(o *join.Options) { o.Addresses = []string{"::ffff:192.0.2.7"} },
	} {
		o := w.options(w.token(s1, false, 0), false, "evil", s1.addr)
		change(&o)
		if _, err := join.Join(t.Context(), o); err == nil {
			t.Errorf("%s is certified", what)
		}
	}
	good := w.options(w.token(s1, false, 0), false, "evil", s1.addr)
	good.Addresses = []string{"192.0.2.8"}
	if _, err := join.Join(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	evil, err := join.OpenAgent(good.Dir, w.now, w.log)
	if err != nil {
		t.Fatal(err)
	}
	as := w.as(s1, evil.Client.GetClientCertificate)
	answer, err := as.Renew(t.Context(), &clusterpb.RenewRequest{Csr: newCSR(t), ServingCsr: newCSR(t), Addresses: []string{"192.0.2.8", "192.0.2.7", "192.0.2.99"}})
	if err != nil || len(answer.LeftOut) != 2 {
		t.Fatalf("%v, %v", answer.GetLeftOut(), err)
	}
	block, _ := pem.Decode(answer.ServingCertificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if cert.VerifyHostname("192.0.2.8") != nil || cert.VerifyHostname("192.0.2.7") == nil || cert.VerifyHostname("192.0.2.99") == nil {
		t.Errorf("certified: %v", cert.IPAddresses)
	}
}

func TestATokenForOneMachine(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	answer, err := w.admin(s1).CreateToken(t.Context(), &clusterpb.CreateTokenRequest{Role: clusterpb.Role_ROLE_AGENT, Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	o := w.options(answer.Token, false, "a1", s1.addr)
	for range 2 { // the same machine may
		if _, err := join.Join(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	_, err = join.Join(t.Context(), w.options(answer.Token, false, "a2", s1.addr))
	wantCode(t, err, codes.Unauthenticated, "used up")
	list, err := w.admin(s1).ListTokens(t.Context(), &clusterpb.ListTokensRequest{})
	if err != nil || len(list.Tokens) != 1 || list.Tokens[0].UsesLeft != 0 || list.Tokens[0].Used != 1 || strings.Contains(list.String(), answer.Token[50:]) {
		t.Fatalf("%v, %v", list, err)
	}
}

func TestAnAgentRenewsThroughWhoeverAnswers(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	o := w.options(w.token(s1, false, 0), false, "a1", s1.addr)
	o.Addresses = []string{"192.0.2.7"}
	if _, err := join.Join(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	agent, err := join.OpenAgent(o.Dir, w.now, w.log)
	if err != nil {
		t.Fatal(err)
	}
	c, err := join.NewClient(join.ClientConfig{Servers: func() []string { return []string{"127.0.0.1:1", s1.addr} }, Roots: s1.pki.Pool, Certificate: agent.Client.GetClientCertificate, Logger: w.log})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := agent.Client.Certificate().SerialNumber
	w.advance(260 * 24 * time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- agent.Run(ctx, c, func() []string { return []string{"192.0.2.7", "192.0.2.8"} }, nil)
	}()
	until(t, "the certificate is renewed", func() bool { return agent.Client.Certificate().SerialNumber.Cmp(before) != 0 })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := agent.Serving.Certificate().VerifyHostname("192.0.2.7"); err != nil {
		t.Error(err)
	}
	if agent.Serving.Certificate().VerifyHostname("192.0.2.8") == nil {
		t.Error("it is certified an address that is not on record and from which it did not call")
	}
	if _, err := w.as(s1, agent.Client.GetClientCertificate).Status(t.Context(), &clusterpb.StatusRequest{}); err != nil {
		t.Error(err)
	}
}
