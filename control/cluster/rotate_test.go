package cluster_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/auth/rotation"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
)

// podTokens are pods whose tokens are replaced at once, unless they are stuck.
type podTokens struct {
	mu      sync.Mutex
	key     string
	stuck   bool
	changed chan struct{}
}

func (p *podTokens) UseTokenKey(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stuck && id != "" && id != p.key {
		p.key = id
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

func (p *podTokens) TokenKey() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.key
}

func (p *podTokens) TokenKeyChanged() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// running is an agent that follows the cluster, as the program does.
type running struct {
	*join.Agent
	trust *join.Trust
	pods  *podTokens
	stop  func()
}

// run has an agent follow the servers until it is stopped, or the test ends.
func (w *world) run(dir string, addrs ...string) *running {
	w.t.Helper()
	agent, err := join.OpenAgent(dir, w.now, w.log)
	if err != nil {
		w.t.Fatal(err)
	}
	trust, err := join.OpenTrust(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := join.NewClient(join.ClientConfig{Servers: func() []string { return addrs }, Roots: trust.Pool, Behind: agent.Behind,
		Certificate: agent.Client.GetClientCertificate, Now: w.now, Logger: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
	pods := &podTokens{changed: make(chan struct{})}
	keys := join.NewKeys(agent, trust, c, pods, w.log)
	agent.Client.Notify(func() { _ = c.Close(); keys.Wake() })
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, part := range []func() error{
		func() error { return keys.Run(ctx) },
		func() error { return c.FollowServers(ctx, keys.Announced) },
		func() error {
			return agent.Run(ctx, c, func() []string { return nil }, func(a *clusterpb.RenewResponse) { _, _ = trust.Update(a.Ca) })
		},
	} {
		all.Go(func() {
			if err := part(); err != nil {
				w.t.Error(err)
			}
		})
	}
	r := &running{Agent: agent, trust: trust, pods: pods, stop: sync.OnceFunc(func() { cancel(); all.Wait(); _ = c.Close() })}
	w.t.Cleanup(r.stop)
	return r
}

func (w *world) rotate(s *testServer, r *clusterpb.RotateCertificatesRequest) *clusterpb.Rotation {
	w.t.Helper()
	now, err := w.admin(s).RotateCertificates(w.t.Context(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return now
}

var bothKeys = &clusterpb.RotateCertificatesRequest{Ca: true, ServiceAccountKey: true, GraceMs: 1}

// reaches waits until the rotation is in a phase, and for waits that contain the text.
func (w *world) reaches(s *testServer, p rotation.Phase, waits string) {
	w.t.Helper()
	var last *clusterpb.Rotation
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the rotation is %v", last)
		}
	}()
	until(w.t, "the rotation is in phase "+string(p)+" and waits for "+waits, func() bool {
		now, err := w.admin(s).GetRotation(w.t.Context(), &clusterpb.GetRotationRequest{})
		last = now
		return err == nil && now.Phase == string(p) && strings.Contains(strings.Join(now.Waits, "\n"), waits)
	})
}

func issuedBy(c *x509.Certificate, s *testServer) bool {
	return c.CheckSignatureFrom(s.pki.CACertificate()) == nil
}

func TestARotationTakesEveryMemberAlong(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	o1, oldAgent := w.joined(s1, "a1")
	o2, _ := w.joined(s1, "a2")
	oldPin, oldAdmin := s1.Pin(), s1.pki.Admin().Certificate()
	oldToken := w.token(s1, false, time.Hour)
	a1 := w.run(o1.Dir, s1.addr, s2.addr)

	w.rotate(s1, bothKeys)
	w.reaches(s1, rotation.Trust, "agent a2")
	until(t, "a1 trusts both", func() bool { return len(a1.trust.Pins()) == 2 })
	if s1.Pin() != oldPin || !issuedBy(a1.Client.Certificate(), s1) {
		t.Error("something is issued before every member trusts the new CA")
	}
	late := w.options(oldToken, false, "a3", s2.addr)
	if _, err := join.Join(t.Context(), late); err != nil {
		t.Error("a join token from before, in phase 1:", err)
	}
	s3 := w.grow(s2, "s3") // in the middle of it
	a3 := w.run(late.Dir, s3.addr)
	a2 := w.run(o2.Dir, s2.addr)
	w.reaches(s1, rotation.Done, "")

	if s1.Pin() == oldPin || s2.Pin() != s1.Pin() || s3.Pin() != s1.Pin() {
		t.Fatalf("CAs: %s, then %s, %s and %s", oldPin, s1.Pin(), s2.Pin(), s3.Pin())
	}
	for name, a := range map[string]*running{"a1": a1, "a2": a2, "a3": a3} {
		for _, c := range []*x509.Certificate{a.Client.Certificate(), a.Serving.Certificate(), a.Services.Certificate()} {
			if !issuedBy(c, s1) {
				t.Errorf("%s still has the certificate of %q of the old CA", name, c.Subject.CommonName)
			}
		}
		if pins := a.trust.Pins(); !slices.Equal(pins, []string{s1.Pin()}) {
			t.Errorf("%s trusts %v", name, pins)
		}
	}
	for _, s := range []*testServer{s1, s2, s3} {
		if ids := s.pki.TokenKeyIDs(); len(ids) != 1 || ids[0] != a1.pods.TokenKey() {
			t.Errorf("%s verifies tokens of %v", s.name, ids)
		}
		opts, _ := s.pki.ClientVerifyOptions()
		for name, c := range map[string]*x509.Certificate{"administrator's": oldAdmin, "agent's": oldAgent.Client.Certificate()} {
			if _, err := c.Verify(opts); err == nil {
				t.Errorf("%s accepts the %s old certificate", s.name, name)
			}
		}
	}
	if _, err := w.stranger(s1).Join(t.Context(), proven(t, oldAgent, "a1", newCSR(t))); err == nil {
		t.Error("an agent that has renewed may still prove itself with its old key")
	}
	_, err := join.Join(t.Context(), w.options(oldToken, false, "a4", s1.addr))
	wantCode(t, err, codes.OK, "balsa token create")
	if _, err := join.Join(t.Context(), w.options(w.token(s2, false, time.Hour), false, "a4", s1.addr)); err != nil {
		t.Error("a new join token:", err)
	}
}

func TestTheNewPrivateKeysLeaveServersOnlySealed(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	s1 := w.formIn(dir)
	old := s1.Pin()
	record := func() (rec rotation.Record, raw string) {
		kv := w.store.View().Get("/balsa/rotation")
		if kv == nil {
			t.Fatal("there is no record")
		}
		if err := json.Unmarshal(kv.Value, &rec); err != nil {
			t.Fatal(err)
		}
		return rec, string(kv.Value)
	}
	_, held := w.joined(s1, "a1") // it does not run: the first phase lasts
	w.rotate(s1, bothKeys)
	first, raw := record()
	if len(first.Sealed) == 0 || bytes.Contains(first.Sealed, []byte("PRIVATE KEY")) || strings.Contains(raw, "PRIVATE KEY") {
		t.Errorf("the record holds private keys in the clear, or none: %s", raw)
	}
	w.rotate(s1, &clusterpb.RotateCertificatesRequest{Force: true})
	w.reaches(s1, rotation.Done, "")
	for _, file := range []string{"ca.pem", "service-account.key"} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == "PRIVATE KEY" {
				w.secrets = append(w.secrets, strings.Split(string(pem.EncodeToMemory(block)), "\n")[1])
			}
		}
	}
	if last, _ := record(); len(last.Sealed) != 0 || s1.Pin() == old || issuedBy(held.Client.Certificate(), s1) {
		t.Error("the sealed keys stay when all is done, or the CA is the old one")
	}
}

func TestAnAgentThatWasOffFindsBackAfterwards(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	o, old := w.joined(s1, "a1")
	stale := s1.pki.CACertificate()
	for range 2 { // it misses two
		w.rotate(s1, bothKeys)
		w.reaches(s1, rotation.Trust, "agent a1")
		w.rotate(s1, &clusterpb.RotateCertificatesRequest{Force: true})
		w.reaches(s1, rotation.Done, "")
	}
	if old.Client.Certificate().CheckSignatureFrom(stale) != nil {
		t.Fatal("the agent has not missed it")
	}
	a := w.run(o.Dir, s1.addr)
	until(t, "the agent has certificates of the new CA", func() bool {
		return issuedBy(a.Client.Certificate(), s1) && slices.Equal(a.trust.Pins(), []string{s1.Pin()})
	})
	if name, err := s1.NodeOf(a.Client.Certificate()); err != nil || name != "a1" {
		t.Errorf("%q, %v", name, err)
	}
	w.rotate(s1, bothKeys) // it takes part in the next
	w.reaches(s1, rotation.Done, "")
}

func TestARotationWaitsForTheTokensOfPods(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	o, _ := w.joined(s1, "a1")
	a := w.run(o.Dir, s1.addr)
	a.pods.mu.Lock()
	a.pods.stuck = true
	a.pods.mu.Unlock()
	w.rotate(s1, bothKeys)
	w.reaches(s1, rotation.Issue, "agent a1: has pods with tokens of the old key")
	if len(s1.pki.TokenKeyIDs()) != 2 {
		t.Error("the old key does not verify any more")
	}
	a.pods.mu.Lock()
	a.pods.stuck = false
	a.pods.mu.Unlock()
	a.pods.UseTokenKey(s1.pki.TokenKeyIDs()[0])
	w.reaches(s1, rotation.Done, "")
}

func TestARemovedMemberIsNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	w.joined(s1, "a1")
	w.rotate(s1, bothKeys)
	w.reaches(s1, rotation.Trust, "agent a1")
	if _, err := w.admin(s1).Remove(t.Context(), &clusterpb.RemoveRequest{Member: "a1"}); err != nil {
		t.Fatal(err)
	}
	w.reaches(s1, rotation.Done, "")
}

func TestWhichRotationsAreRefused(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	_, agent := w.joined(s1, "a1") // it does not run: the rotation stays in its first phase
	ask := func(c clusterpb.ClusterClient, r *clusterpb.RotateCertificatesRequest) error {
		_, err := c.RotateCertificates(t.Context(), r)
		return err
	}
	admin := w.admin(s1)
	wantCode(t, ask(admin, &clusterpb.RotateCertificatesRequest{}), codes.InvalidArgument, "name what is replaced")
	wantCode(t, ask(admin, &clusterpb.RotateCertificatesRequest{Ca: true, Force: true}), codes.InvalidArgument, "force")
	wantCode(t, ask(admin, &clusterpb.RotateCertificatesRequest{Ca: true, GraceMs: -1}), codes.InvalidArgument, "old tokens")
	wantCode(t, ask(admin, &clusterpb.RotateCertificatesRequest{Force: true}), codes.FailedPrecondition, "no rotation")
	wantCode(t, ask(w.as(s1, agent.Client.GetClientCertificate), bothKeys), codes.PermissionDenied, "administrator")
	if now := w.rotate(s1, bothKeys); now.Number != 1 || now.Phase != string(rotation.Trust) {
		t.Errorf("%v", now)
	}
	wantCode(t, ask(admin, bothKeys), codes.FailedPrecondition, "phase 1 of 3")
}

func TestAnotherLeaderGoesOnWithARotation(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	o, _ := w.joined(s1, "a1")
	w.rotate(s1, bothKeys)
	w.reaches(s2, rotation.Trust, "agent a1")
	w.raft.lead(s2.id)
	w.run(o.Dir, s2.addr)
	w.reaches(s2, rotation.Done, "")
}

func TestAServerThatMissedARotationSaysWhatToDo(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	first := w.authority(dir)
	bundle, err := first.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	s1 := w.formIn(dir)
	w.rotate(s1, bothKeys)
	w.reaches(s1, rotation.Done, "")
	old := filepath.Join(t.TempDir(), "tls")
	if err := pki.WriteBundle(old, bundle); err != nil {
		t.Fatal(err)
	}
	late := w.start("s2", newID(), w.authority(old))
	until(t, "its log says so", func() bool { return strings.Contains(w.logs.String(), "was rotated without this server") })
	if late.pki.Trusts()[0] == s1.pki.Trusts()[0] {
		t.Error("it took over a CA from nowhere")
	}
}
