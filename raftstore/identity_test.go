package raftstore

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

func TestASurvivorBeginsAnew(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadIdentity(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := Reset(Config{Dir: dir}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("an empty directory was reset:", err)
	}
	_, trans := raft.NewInmemTransport("00000000000000000000000000000001")
	s := open(t, Config{Dir: dir, ServerID: "00000000000000000000000000000001", Transport: trans})
	put(t, s, "/kept", "x")
	if err := s.AddLearner(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	// b never answers: with its vote there is no quorum any more.
	if err := s.Promote(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := s.Txn(ctx, mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/lost"}}}); err == nil {
		t.Fatal("a write went through without a quorum")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Reset(Config{Dir: dir, ClusterID: "other"}); !errors.Is(err, ErrWrongCluster) {
		t.Fatal(err)
	}
	id, err := Reset(Config{Dir: dir})
	if err != nil || id.Generation != 2 || id.ServerID != "00000000000000000000000000000001" {
		t.Fatal(id, err)
	}
	s = open(t, Config{Dir: dir})
	if kv := s.View().Get("/kept"); s.Generation() != 2 || kv == nil || string(kv.Value) != "x" {
		t.Fatalf("generation %d, /kept is %v", s.Generation(), kv)
	}
	put(t, s, "/after", "y")
	if servers, err := s.Servers(); err != nil || len(servers) != 1 {
		t.Fatal(servers, err)
	}
}
