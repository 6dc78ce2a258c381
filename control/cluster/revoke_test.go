package cluster_test

import (
	"context"
	"crypto/x509"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
)

// revoked counts what the store has of removed agents.
func (w *world) revoked() (n int) {
	w.store.View().Ascend("/balsa/revoked/", raftstore.PrefixEnd("/balsa/revoked/"), func(*raftstore.KeyValue) bool { n++; return true })
	return n
}

func TestARemovedAgentsCertificatesDoNotCount(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	joined := func(name string, replace bool) *join.Agent {
		t.Helper()
		o := w.options(w.token(s1, false, 0), false, name, s1.addr)
		if o.Replace = replace; replace {
			o.Token = w.replacing(s1, name)
		}
		if _, err := join.Join(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		a, err := join.OpenAgent(o.Dir, w.now, w.log)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	counts := func(c *x509.Certificate) bool {
		err := cluster.Revoked(w.store.View(), c)
		if err != nil && !errors.Is(err, cluster.ErrRevoked) {
			t.Fatal(err)
		}
		return err == nil
	}
	gone, stays := joined("a1", false), joined("a2", false)
	before := gone.Client.Certificate()
	w.advance(250 * 24 * time.Hour)
	c, err := join.NewClient(join.ClientConfig{Servers: func() []string { return []string{s1.addr} }, Roots: s1.pki.Pool, Certificate: gone.Client.GetClientCertificate, Logger: w.log})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	renewOnce(t, gone, c)
	after, services := gone.Client.Certificate(), gone.Services.Certificate()
	if _, err := w.admin(s1).Remove(t.Context(), &clusterpb.RemoveRequest{Member: "a1"}); err != nil {
		t.Fatal(err)
	}
	for what, cert := range map[string]*x509.Certificate{"newest": after, "one before": before, "for Services": services} {
		if counts(cert) {
			t.Errorf("the %s counts", what)
		}
	}
	if !counts(stays.Client.Certificate()) || !counts(stays.Services.Certificate()) || !counts(s1.pki.Admin().Certificate()) {
		t.Error("another's certificate does not count")
	}
	if again := joined("a1", false); !counts(again.Client.Certificate()) || counts(after) {
		t.Error("a1 joined again: its new certificate must count, the old one not")
	}
	if next := joined("a2", true); !counts(next.Client.Certificate()) || counts(stays.Client.Certificate()) || counts(stays.Services.Certificate()) {
		t.Error("a2 was replaced: the new one's certificate must count, the old one's not")
	}
	if n := w.revoked(); n != 6 {
		t.Errorf("%d keys are refused, want 4 and 2", n)
	}
	w.advance(800 * 24 * time.Hour)
	if _, err := s1.pki.Renew(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin(s1).Remove(t.Context(), &clusterpb.RemoveRequest{Member: "a2"}); err != nil {
		t.Fatal(err)
	}
	if n := w.revoked(); n != 0 {
		t.Errorf("%d keys are refused whose certificates have expired", n)
	}
}

// renewOnce renews all certificates of an agent.
func renewOnce(t *testing.T, a *join.Agent, c *join.Client) {
	t.Helper()
	renewed := make(chan struct{})
	a.Client.Notify(sync.OnceFunc(func() { close(renewed) }))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, c, func() []string { return nil }, nil) }()
	select {
	case <-renewed:
	case <-time.After(time.Minute):
		t.Error("not renewed in time")
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestAnAgentWithOneKeyForAllIsRemoved: which keys it has is the agent's to choose, and may not keep it in the cluster.
func TestAnAgentWithOneKeyForAllIsRemoved(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	csr := newCSR(t)
	_, err := w.as(s1, nil).Join(t.Context(), &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_AGENT, Name: "a1", Csr: csr, ServingCsr: csr, ServicesCsr: csr,
		Token: w.token(s1, false, 0), Version: "v0.3.0", Protocol: cluster.Protocol})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin(s1).Remove(t.Context(), &clusterpb.RemoveRequest{Member: "a1"}); err != nil {
		t.Error(err)
	}
	if n := w.revoked(); n != 1 {
		t.Errorf("%d keys are refused, want 1", n)
	}
}

func TestAMachineThatJoinsAgainWithItsKeyCounts(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	keys, err := pki.OpenCredentials(pki.CredentialsConfig{Path: t.TempDir() + "/k.pem"})
	if err != nil {
		t.Fatal(err)
	}
	csr, err := keys.Request()
	if err != nil {
		t.Fatal(err)
	}
	req := func() *clusterpb.JoinRequest {
		return &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_AGENT, Name: "a1", Csr: csr, ServingCsr: newCSR(t), ServicesCsr: newCSR(t), Token: w.token(s1, false, 0), Version: "v0.3.0", Protocol: cluster.Protocol}
	}
	answer, err := w.as(s1, nil).Join(t.Context(), req())
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Install(answer.Certificate); err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin(s1).Remove(t.Context(), &clusterpb.RemoveRequest{Member: "a1"}); err != nil {
		t.Fatal(err)
	}
	if cluster.Revoked(w.store.View(), keys.Certificate()) == nil {
		t.Fatal("it counts while it is removed")
	}
	if _, err := w.as(s1, nil).Join(t.Context(), req()); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Revoked(w.store.View(), keys.Certificate()); err != nil {
		t.Error(err)
	}
}
