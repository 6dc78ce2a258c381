package cluster_test

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore/member"
)

// joined is an agent that has joined at s.
func (w *world) joined(s *testServer, name string, addresses ...string) (join.Options, *join.Agent) {
	w.t.Helper()
	o := w.options(w.token(s, false, 0), false, name, s.addr)
	o.Addresses = addresses
	if _, err := join.Join(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	a, err := join.OpenAgent(o.Dir, w.now, w.log)
	if err != nil {
		w.t.Fatal(err)
	}
	return o, a
}

// expire moves the clock beyond the life of all certificates; the server's are made anew.
func (w *world) expire(s *testServer) {
	w.t.Helper()
	w.advance(400 * 24 * time.Hour)
	if _, err := s.pki.Renew(); err != nil {
		w.t.Fatal(err)
	}
}

func TestAnAgentWhoseCertificateExpiredRenewsWithItsKey(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	_, agent := w.joined(s1, "a1", "192.0.2.8")
	w.expire(s1)
	if agent.Client.Valid() {
		t.Fatal("the certificate has not expired")
	}
	c, err := join.NewClient(join.ClientConfig{Servers: func() []string { return []string{s1.addr} }, Roots: s1.pki.Pool, Certificate: agent.Client.GetClientCertificate,
		Now: w.now, Logger: w.log})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx, c, func() []string { return []string{"192.0.2.8"} }, nil) }()
	until(t, "the certificate is valid", agent.Client.Valid)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := agent.Serving.Certificate().VerifyHostname("192.0.2.8"); err != nil || w.now().After(agent.Services.Certificate().NotAfter) {
		t.Errorf("the other certificates are not renewed: %v", err)
	}
	if name, err := s1.NodeOf(agent.Client.Certificate()); err != nil || name != "a1" {
		t.Errorf("%q, %v", name, err)
	}
}

// stranger is a client that shows no certificate.
func (w *world) stranger(s *testServer) clusterpb.ClusterClient {
	return w.as(s, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil })
}

// proven is a request for new certificates, proved with the agent's key.
func proven(t *testing.T, a *join.Agent, name string, csr []byte) *clusterpb.JoinRequest {
	t.Helper()
	r := &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_AGENT, Name: name, Csr: csr, Addresses: []string{"192.0.2.8"}}
	var err error
	r.Certificate, _ = a.Client.PEM()
	if _, r.Proof, err = a.Client.Prove(cluster.RenewalDigest(r)); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhoMayNotRenewAnExpiredCertificate(t *testing.T) {
	for name, tc := range map[string]struct {
		code codes.Code
		text string
		ask  func(t *testing.T, w *world, s *testServer, o join.Options, a *join.Agent) *clusterpb.JoinRequest
	}{
		"another node's name": {codes.PermissionDenied, "does not renew", func(t *testing.T, _ *world, _ *testServer, _ join.Options, a *join.Agent) *clusterpb.JoinRequest {
			return proven(t, a, "a2", newCSR(t))
		}},
		"a request that was changed": {codes.InvalidArgument, "not signed with the key", func(t *testing.T, _ *world, _ *testServer, _ join.Options, a *join.Agent) *clusterpb.JoinRequest {
			r := proven(t, a, "a1", newCSR(t))
			r.Csr = newCSR(t)
			return r
		}},
		"another cluster's certificate": {codes.InvalidArgument, "not of this cluster", func(t *testing.T, _ *world, _ *testServer, _ join.Options, _ *join.Agent) *clusterpb.JoinRequest {
			other := newWorld(t)
			_, a := other.joined(other.form(), "a1")
			return proven(t, a, "a1", newCSR(t))
		}},
		"a node that was removed": {codes.PermissionDenied, "was removed", func(t *testing.T, w *world, s *testServer, _ join.Options, a *join.Agent) *clusterpb.JoinRequest {
			w.gossip.say(member.Member{Meta: member.Meta{Name: "a1", Role: member.RoleAgent}, Addr: "192.0.2.9:7946", State: member.StateFailed})
			if _, err := w.admin(s).Remove(t.Context(), &clusterpb.RemoveRequest{Member: "a1"}); err != nil {
				t.Fatal(err)
			}
			return proven(t, a, "a1", newCSR(t))
		}},
		"a key that renewed to another since": {codes.PermissionDenied, "another machine's", func(t *testing.T, w *world, s *testServer, _ join.Options, a *join.Agent) *clusterpb.JoinRequest {
			if _, err := w.stranger(s).Join(t.Context(), proven(t, a, "a1", newCSR(t))); err != nil {
				t.Fatal(err)
			}
			return proven(t, a, "a1", newCSR(t))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s1 := w.form()
			o, agent := w.joined(s1, "a1", "192.0.2.8")
			w.joined(s1, "a2")
			w.expire(s1)
			_, err := w.stranger(s1).Join(t.Context(), tc.ask(t, w, s1, o, agent))
			wantCode(t, err, tc.code, tc.text)
		})
	}
}

func TestARenewalWhoseAnswerWasLostIsAskedForAgain(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	_, agent := w.joined(s1, "a1", "192.0.2.8")
	w.expire(s1)
	csr := newCSR(t)
	for range 2 {
		if _, err := w.stranger(s1).Join(t.Context(), proven(t, agent, "a1", csr)); err != nil {
			t.Fatal(err)
		}
	}
}
