package raftstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// A server that was started again showed the state of its last snapshot, until
// it heard from a leader: clients read what they had seen gone.
func TestARestartedPeerDoesNotForgetWhatItShowed(t *testing.T) {
	for _, damage := range []string{"", "x", "a mark that cannot be right"} {
		dir, id := t.TempDir(), "00000000000000000000000000000001"
		start := func() *Store {
			_, trans := raft.NewInmemTransport(raft.ServerAddress(id))
			s, err := Open(Config{Dir: dir, ServerID: id, Transport: trans})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := start()
		for _, v := range []string{"1", "2", "3"} {
			put(t, s, "/k", v)
		}
		if err := s.AddLearner(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if err := s.Promote(t.Context(), "b"); err != nil { // from now on there is no quorum
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := s.Txn(ctx, mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/k", Value: []byte("never committed")}}})
		cancel()
		if err == nil {
			t.Fatal("a write went through without a quorum")
		}
		want := s.View()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if damage != "" {
			write(t, filepath.Join(dir, raftlog.CommitMarkName), []byte(damage))
		}
		s = start()
		got := s.View()
		if damage == "" && (got.Revision() != want.Revision() || string(got.Get("/k").Value) != "3") {
			t.Errorf("shows %v at revision %d, not %d", got.Get("/k"), got.Revision(), want.Revision())
		}
		if kv := got.Get("/k"); kv != nil && string(kv.Value) == "never committed" {
			t.Error("shows what was never committed")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, raftlog.CommitMarkName)); err != nil {
			t.Error(err)
		}
	}
}

func TestALogThatEndsBeforeWhatWasCommittedIsRefused(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "/k", "v")
	index, _ := s.Hash()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mark, committed, err := raftlog.OpenCommitMark(dir)
	if err != nil || committed != index {
		t.Fatalf("the mark is %d, applied was %d, %v", committed, index, err)
	}
	mark.Set(index + 100)
	if err := mark.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}
