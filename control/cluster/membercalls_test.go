package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// calls are all methods but Join, each with a request that changes nothing when it is refused.
func calls(c clusterpb.ClusterClient) map[string]func(context.Context) error {
	first := func(recv func() error, err error) error {
		if err != nil {
			return err
		}
		return recv()
	}
	return map[string]func(context.Context) error{
		"Renew":   func(ctx context.Context) error { _, err := c.Renew(ctx, &clusterpb.RenewRequest{}); return err },
		"Members": func(ctx context.Context) error { _, err := c.Members(ctx, &clusterpb.MembersRequest{}); return err },
		"Status":  func(ctx context.Context) error { _, err := c.Status(ctx, &clusterpb.StatusRequest{}); return err },
		"Stats":   func(ctx context.Context) error { _, err := c.Stats(ctx, &clusterpb.StatsRequest{}); return err },
		"Promote": func(ctx context.Context) error {
			_, err := c.Promote(ctx, &clusterpb.PromoteRequest{Server: "?"})
			return err
		},
		"Demote": func(ctx context.Context) error {
			_, err := c.Demote(ctx, &clusterpb.DemoteRequest{Server: "?"})
			return err
		},
		"Remove": func(ctx context.Context) error {
			_, err := c.Remove(ctx, &clusterpb.RemoveRequest{Member: "?"})
			return err
		},
		"Transfer": func(ctx context.Context) error {
			_, err := c.Transfer(ctx, &clusterpb.TransferRequest{Server: "?"})
			return err
		},
		"CreateToken": func(ctx context.Context) error {
			_, err := c.CreateToken(ctx, &clusterpb.CreateTokenRequest{})
			return err
		},
		"ListTokens": func(ctx context.Context) error {
			_, err := c.ListTokens(ctx, &clusterpb.ListTokensRequest{})
			return err
		},
		"RevokeToken": func(ctx context.Context) error {
			_, err := c.RevokeToken(ctx, &clusterpb.RevokeTokenRequest{})
			return err
		},
		"RotateGossipKey": func(ctx context.Context) error {
			_, err := c.RotateGossipKey(ctx, &clusterpb.RotateGossipKeyRequest{})
			return err
		},
		"SnapshotSave": func(ctx context.Context) error {
			s, err := c.SnapshotSave(ctx, &clusterpb.SnapshotSaveRequest{})
			return first(func() error { _, err := s.Recv(); return err }, err)
		},
		"SnapshotRestore": func(ctx context.Context) error {
			s, err := c.SnapshotRestore(ctx)
			return first(func() error { _, err := s.CloseAndRecv(); return err }, err)
		},
		"Events": func(ctx context.Context) error {
			s, err := c.Events(ctx, &clusterpb.EventsRequest{})
			return first(func() error { _, err := s.Recv(); return err }, err)
		},
		"Servers": func(ctx context.Context) error {
			s, err := c.Servers(ctx, &clusterpb.ServersRequest{})
			return first(func() error { _, err := s.Recv(); return err }, err)
		},
		"Hears": func(ctx context.Context) error { _, err := c.Hears(ctx, &clusterpb.HearsRequest{}); return err },
		"GossipKeys": func(ctx context.Context) error {
			s, err := c.GossipKeys(ctx, &clusterpb.GossipKeysRequest{})
			return first(func() error { _, err := s.Recv(); return err }, err)
		},
	}
}

func TestWhoMayCallWhat(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	o := w.options(w.token(s1, false, 0), false, "a1", s1.addr)
	if _, err := join.Join(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	agent, err := join.OpenAgent(o.Dir, w.now, w.log)
	if err != nil {
		t.Fatal(err)
	}
	// Certificates of the same CA that stand for nobody here.
	stranger, err := s1.pki.NodeClient("unknown")
	if err != nil {
		t.Fatal(err)
	}
	proxy := agent.Services
	nodeMay := map[string]bool{"Renew": true, "Members": true, "Status": true, "Events": true, "Servers": true}
	for name, call := range calls(w.as(s1, nil)) {
		wantCode(t, call(t.Context()), codes.Unauthenticated, "certificate")
		_ = name
	}
	for name, call := range calls(w.as(s1, proxy.GetClientCertificate)) {
		if err := call(t.Context()); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s as %s: %v", name, pki.ServicesUser, err)
		}
	}
	for name, call := range calls(w.as(s1, stranger.GetClientCertificate)) {
		if err := call(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s as a node that never joined: %v", name, err)
		}
	}
	for name, call := range calls(w.as(s1, agent.Client.GetClientCertificate)) {
		if err := call(t.Context()); (status.Code(err) == codes.PermissionDenied) == nodeMay[name] {
			t.Errorf("%s as a node: %v", name, err)
		}
	}
	for name, call := range calls(w.admin(s1)) {
		if err := call(t.Context()); (status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.Unauthenticated) && name != "Renew" {
			t.Errorf("%s as administrator: %v", name, err)
		}
	}
}

func TestVotesLeadershipAndLeaving(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2, s3 := w.grow(s1, "s2"), w.grow(s1, "s3")
	ctx, anywhere := t.Context(), w.admin(s3)
	_, err := anywhere.Promote(ctx, &clusterpb.PromoteRequest{Server: "s2"})
	wantCode(t, err, codes.FailedPrecondition, "2 voters survive no more failures than 1")
	for _, name := range []string{s2.id, s3.id[:8]} {
		if _, err := anywhere.Promote(ctx, &clusterpb.PromoteRequest{Server: name, Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = anywhere.Promote(ctx, &clusterpb.PromoteRequest{Server: "nobody"})
	wantCode(t, err, codes.NotFound, "balsa members")
	if r, err := anywhere.Transfer(ctx, &clusterpb.TransferRequest{Server: "s2"}); err != nil || r.LeaderId != s2.id {
		t.Fatalf("%v, %v", r, err)
	}
	st, err := anywhere.Status(ctx, &clusterpb.StatusRequest{})
	if err != nil || st.LeaderName != "s2" || st.Voters != 3 || st.VotersAlive != 3 || st.FailuresTolerated != 1 || st.Fault != "" {
		t.Fatalf("%v, %v", st, err)
	}
	_, err = anywhere.Remove(ctx, &clusterpb.RemoveRequest{Member: "s1"})
	wantCode(t, err, codes.FailedPrecondition, "is alive")

	// s3 dies. With one of three gone, neither of the others can be spared.
	w.gossip.say(member.Member{Meta: member.Meta{ServerID: s3.id, Name: "s3", Role: member.RoleServer}, State: member.StateFailed})
	_, err = w.admin(s1).Demote(ctx, &clusterpb.DemoteRequest{Server: "s1"})
	wantCode(t, err, codes.FailedPrecondition, "only 1 of 2 voters")
	if _, err := w.admin(s1).Remove(ctx, &clusterpb.RemoveRequest{Member: "s3"}); err != nil {
		t.Fatal(err)
	}
	// It comes back with its old certificate and data: no.
	leaf, err := s3.pki.Peer(s3.id)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.as(s1, leaf.GetClientCertificate).Join(ctx, &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_SERVER, Name: "s3", ServerId: s3.id, Addresses: []string{"h:1"}, Csr: newCSR(t), Protocol: 1})
	wantCode(t, err, codes.FailedPrecondition, "was removed")

	// The leader leaves: it hands over first.
	_, err = w.admin(s1).Leave(ctx, &clusterpb.LeaveRequest{ServerId: s2.id})
	wantCode(t, err, codes.FailedPrecondition, "ask the one that is to leave")
	if _, err := w.admin(s2).Leave(ctx, &clusterpb.LeaveRequest{ServerId: s2.id}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s2.left:
	default:
		t.Error("the server was not told that it is out")
	}
	servers, _ := peerStore{raft: w.raft}.Servers()
	if len(servers) != 1 || servers[0].ID != s1.id {
		t.Fatalf("%+v", servers)
	}
	_, err = w.admin(s1).Leave(ctx, &clusterpb.LeaveRequest{ServerId: s1.id})
	wantCode(t, err, codes.FailedPrecondition, "only voter")
}

func TestAServerComesBackByItsCertificate(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	s3 := w.grow(s1, "s3")
	if err := (peerStore{id: s1.id, raft: w.raft}).Remove(t.Context(), s2.id); err != nil { // by the autopilot: nobody wanted it gone for good
		t.Fatal(err)
	}
	leaf, err := s2.pki.Peer(s2.id)
	if err != nil {
		t.Fatal(err)
	}
	req := &clusterpb.JoinRequest{Role: clusterpb.Role_ROLE_SERVER, Name: "s2", ServerId: s2.id, Addresses: []string{"127.0.0.1:2"}, Csr: newCSR(t), Version: "v0.3.0", Protocol: 1}
	for _, asked := range []*testServer{s1, s3} { // s3 passes it on
		if _, err := w.as(asked, leaf.GetClientCertificate).Join(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	req.ServerId = newID()
	_, err = w.as(s3, leaf.GetClientCertificate).Join(t.Context(), req)
	wantCode(t, err, codes.InvalidArgument, "not a join token")
}

func TestCallsWaitForALeader(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	w.raft.lead("")
	done := make(chan error, 1)
	go func() {
		_, err := w.admin(s2).Promote(context.Background(), &clusterpb.PromoteRequest{Server: "s2", Force: true})
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("answered without a leader: %v", err)
	case <-time.After(300 * time.Millisecond): // it waits
	}
	w.raft.lead(s1.id)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestEventsAreResumedWhereTheyWereLeft(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := func(req *clusterpb.EventsRequest, until func(*clusterpb.Event) bool) *clusterpb.Event {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		stream, err := w.admin(s1).Events(ctx, req)
		for err == nil {
			var e *clusterpb.Event
			if e, err = stream.Recv(); err == nil && until(e) {
				return e
			}
		}
		t.Fatal(err)
		return nil
	}
	led := read(&clusterpb.EventsRequest{}, func(e *clusterpb.Event) bool { return e.Type == clusterpb.EventType_EVENT_LEADER })
	if led.ServerId != s1.id || led.Name != "s1" {
		t.Fatalf("%v", led)
	}
	if _, err := join.Join(t.Context(), w.options(w.token(s1, false, 0), false, "a1", s1.addr)); err != nil {
		t.Fatal(err)
	}
	w.gossip.say(member.Member{Meta: member.Meta{Name: "never-joined", Role: member.RoleAgent}, State: member.StateAlive})
	w.gossip.say(member.Member{Meta: member.Meta{Name: "a1", Role: member.RoleAgent}, State: member.StateAlive})
	joined := read(&clusterpb.EventsRequest{Stream: led.Stream, After: led.Sequence}, func(e *clusterpb.Event) bool {
		if e.Sequence <= led.Sequence {
			t.Errorf("again: %v", e)
		}
		return e.Type == clusterpb.EventType_EVENT_MEMBER_JOINED && e.Name == "a1"
	})
	w.gossip.say(member.Member{Meta: member.Meta{Name: "a1", Role: member.RoleAgent}, State: member.StateFailed})
	failed := read(&clusterpb.EventsRequest{Stream: led.Stream, After: joined.Sequence}, func(e *clusterpb.Event) bool { return e.Name == "a1" })
	if failed.State != clusterpb.State_STATE_FAILED || failed.Sequence != joined.Sequence+1 {
		t.Fatalf("%v", failed)
	}
	// Another run's sequence means nothing: the reader hears that it missed something.
	if e := read(&clusterpb.EventsRequest{Stream: "another", After: 7}, func(*clusterpb.Event) bool { return true }); e.Type != clusterpb.EventType_EVENT_GAP {
		t.Fatalf("%v", e)
	}
}

func TestSnapshotsTravelWholeAndKeepTodaysMembers(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	s2 := w.grow(s1, "s2")
	put := func(key, value string) {
		t.Helper()
		if _, err := w.store.Txn(t.Context(), raftstore.Txn{Success: []raftstore.Op{{Type: raftstore.OpPut, Key: key, Value: []byte(value)}}}); err != nil {
			t.Fatal(err)
		}
	}
	put("/registry/a", "then")
	put("/registry/large", strings.Repeat("x", 700_000))
	old := w.token(s1, false, 0)
	var file bytes.Buffer
	stream, err := w.admin(s2).SnapshotSave(t.Context(), &clusterpb.SnapshotSaveRequest{})
	for err == nil {
		var chunk *clusterpb.SnapshotChunk
		if chunk, err = stream.Recv(); err == nil {
			file.Write(chunk.Data)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if bytes.Contains(file.Bytes(), []byte("/registry/")) {
		t.Fatal("the state lies open in the file")
	}
	if bytes.Contains(file.Bytes(), []byte("PRIVATE KEY")) {
		t.Fatal("keys lie open in the file")
	}
	// Time goes on: a token is revoked, a server joins, an object changes.
	list, err := w.admin(s1).ListTokens(t.Context(), &clusterpb.ListTokensRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tok := range list.Tokens {
		if _, err := w.admin(s1).RevokeToken(t.Context(), &clusterpb.RevokeTokenRequest{Id: tok.Id}); err != nil {
			t.Fatal(err)
		}
	}
	s3 := w.grow(s1, "s3")
	put("/registry/a", "now")
	put("/registry/b", "now")

	bad := bytes.Clone(file.Bytes())
	bad[len(bad)/2] ^= 1
	_, err = cluster.SendArchive(t.Context(), w.admin(s2), bytes.NewReader(bad), cluster.Restoring{})
	wantCode(t, err, codes.InvalidArgument, "damaged")
	other := newWorld(t)
	_, err = cluster.SendArchive(t.Context(), other.admin(other.form()), bytes.NewReader(file.Bytes()), cluster.Restoring{})
	wantCode(t, err, codes.FailedPrecondition, "--foreign")
	_, err = cluster.SendArchive(t.Context(), other.admin(other.peers[0]), bytes.NewReader(file.Bytes()), cluster.Restoring{Foreign: true})
	wantCode(t, err, codes.FailedPrecondition, "--recovery-key-file")
	if _, err := cluster.SendArchive(t.Context(), other.admin(other.peers[0]), bytes.NewReader(file.Bytes()), cluster.Restoring{Foreign: true, Key: &w.key}); err != nil {
		t.Errorf("a foreign archive with its key: %v", err)
	}
	if got := w.store.View().Get("/registry/a"); string(got.Value) != "now" {
		t.Fatal("a refused archive changed something")
	}
	answer, err := cluster.SendArchive(t.Context(), w.admin(s2), bytes.NewReader(file.Bytes()), cluster.Restoring{}) // s2 passes it on
	if err != nil {
		t.Fatal(err)
	}
	v := w.store.View()
	if string(v.Get("/registry/a").Value) != "then" || v.Get("/registry/b") != nil || answer.Revision < v.Revision()-5 {
		t.Fatalf("%v, revision %d", answer, v.Revision())
	}
	if _, ok := cluster.Records(v)[s3.id]; !ok {
		t.Error("today's member is forgotten")
	}
	_, err = join.Join(t.Context(), w.options(old, false, "late", s1.addr))
	wantCode(t, err, codes.Unauthenticated, "revoked")

	rebuildElsewhere(t, w, s1, file.Bytes())
}

// rebuildElsewhere makes a cluster of an archive and the recovery key, on a machine that has nothing.
func rebuildElsewhere(t *testing.T, w *world, s1 *testServer, file []byte) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "server")
	cfg := join.RebuildConfig{Archive: bytes.NewReader(file), Key: archive.NewKey(), Dir: dir, StoreDir: filepath.Join(dir, "raft"), Name: "new", Logger: w.log}
	if _, err := join.Rebuild(t.Context(), cfg); !errors.Is(err, archive.ErrWrongKey) {
		t.Fatalf("with another key: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("a wrong key left something")
	}
	cfg.Key = w.key
	r, err := join.Rebuild(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := join.Rebuild(t.Context(), cfg); !errors.Is(err, join.ErrNotEmpty) {
		t.Fatalf("over a server: %v", err)
	}
	if r.ClusterID != w.store.ClusterID() || r.Generation != 2 || len(r.GossipKeys) == 0 || r.Settings.ClusterDomain != "cluster.local" || r.Settings.GossipPort != 7946 {
		t.Fatalf("%+v", r)
	}
	again := w.authority(filepath.Join(dir, "tls"))
	if pki.Pin(again.CACertificate().Raw) != s1.Pin() {
		t.Error("another CA")
	}
	store, err := raftstore.Open(raftstore.Config{Dir: cfg.StoreDir, ClusterID: r.ClusterID, ServerID: r.ServerID})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	v, err := store.Barrier(t.Context())
	if err != nil || string(v.Get("/registry/a").Value) != "then" || len(cluster.Records(v)) != 0 || store.Generation() != 2 {
		t.Fatalf("%v, generation %d", err, store.Generation())
	}
}

func TestTheGossipKeyRotatesAsMembersFollow(t *testing.T) {
	w := newWorld(t)
	s1 := w.form()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := w.admin(s1).GossipKeys(ctx, &clusterpb.GossipKeysRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *clusterpb.Keyring {
		t.Helper()
		ring, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return ring
	}
	// say is what a member says when it uses these keys.
	say := func(keys [][]byte) {
		ids := make([]member.KeyID, len(keys))
		for i, k := range keys {
			ids[i] = member.Fingerprint(k)
		}
		w.gossip.say(member.Member{Meta: member.Meta{ServerID: s1.id, Name: "s1", Role: member.RoleServer, APIAddr: s1.addr, Keys: ids}, State: member.StateAlive})
	}
	first := next()
	say(first.Keys)
	if _, err := w.admin(s1).RotateGossipKey(ctx, &clusterpb.RotateGossipKeyRequest{}); err != nil {
		t.Fatal(err)
	}
	spread := next()
	if len(spread.Keys) != 2 || !bytes.Equal(spread.Keys[0], first.Keys[0]) {
		t.Fatal("the new key must not encrypt before all know it")
	}
	_, err = w.admin(s1).RotateGossipKey(ctx, &clusterpb.RotateGossipKeyRequest{})
	wantCode(t, err, codes.FailedPrecondition, "under way")
	say(spread.Keys)
	used := next()
	if len(used.Keys) != 2 || !bytes.Equal(used.Keys[0], spread.Keys[1]) {
		t.Fatal("all know the new key, and it does not encrypt")
	}
	say(used.Keys)
	if last := next(); len(last.Keys) != 1 || !bytes.Equal(last.Keys[0], used.Keys[0]) || last.Version != 4 {
		t.Fatalf("version %d with %d keys", last.Version, len(last.Keys))
	}
}
