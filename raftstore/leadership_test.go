package raftstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

func TestALeadershipIsKeptUpWithoutCare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{InMemory: true})
		defer stop()
		l, err := s.Campaign(context.Background(), "scheduler", "a", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		select {
		case <-l.Lost():
			t.Fatal("lost")
		default:
		}
		if err := l.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := l.Resign(context.Background()); err != nil {
			t.Fatal("resigning twice:", err)
		}
	})
}

func TestADeadHoldersLeadershipPassesOnAtOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{Dir: dir})
		a, err := s.Campaign(context.Background(), "x", "a", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		stop() // without resigning: as good as dead
		<-a.Lost()
		s, stop = running(t, Config{Dir: dir})
		defer stop()
		start := time.Now()
		b, err := s.Campaign(context.Background(), "x", "b", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Second || b.Epoch() <= a.Epoch() {
			t.Fatalf("took %v, epoch %d after %d", took, b.Epoch(), a.Epoch())
		}
	})
}

func TestARestartedHolderLeadsAgainAtOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{Dir: dir})
		a, err := s.Campaign(context.Background(), "x", s.ServerID(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		stop()
		s, stop = running(t, Config{Dir: dir})
		defer stop()
		start := time.Now()
		b, err := s.Campaign(context.Background(), "x", s.ServerID(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Second || b.Epoch() <= a.Epoch() {
			t.Fatalf("took %v, epoch %d after %d", took, b.Epoch(), a.Epoch())
		}
	})
}

func TestTwoCampaignsOfOneHolderDoNotStealFromEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{InMemory: true})
		defer stop()
		a, err := s.Campaign(context.Background(), "x", "me", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := s.Campaign(ctx, "x", "me", 10*time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("won beside another term", err)
		}
		select {
		case <-a.Lost():
			t.Fatal("lost to the same holder")
		default:
		}
	})
}

func TestADeletedLeadershipIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{InMemory: true})
		defer stop()
		l, err := s.Campaign(context.Background(), "x", "a", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.LeaseRevoke(context.Background(), l.lease); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-l.Lost():
		default:
			t.Fatal("not lost")
		}
	})
}

// TestAnOldEpochIsRefusedByTheStateItself needs no clock: entries of two terms,
// in the worst order, straight into the state.
func TestAnOldEpochIsRefusedByTheStateItself(t *testing.T) {
	s := mvcc.NewState()
	do := func(c mvcc.Command) mvcc.Applied {
		d, err := mvcc.DecodeCommand(c.Encode())
		if err != nil {
			t.Fatal(err)
		}
		return s.Apply(d)
	}
	lead := func(lease mvcc.LeaseID) *Leadership {
		do(mvcc.Command{Kind: mvcc.KindLeaseGrant, Lease: lease, TTL: 1000})
		a := do(mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{
			Compares: []mvcc.Compare{mvcc.CreateRevisionIs(LeadershipPrefix+"x", 0)},
			Success:  []mvcc.Op{{Type: mvcc.OpPut, Key: LeadershipPrefix + "x", Lease: lease}},
		}})
		if a.Err != nil || !a.Txn.Succeeded {
			t.Fatal("did not lead", a.Err)
		}
		return &Leadership{name: "x", epoch: a.Txn.Revision}
	}
	bind := func(l *Leadership, node string) bool {
		a := do(mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{
			Compares: []mvcc.Compare{l.Fence()},
			Success:  []mvcc.Op{{Type: mvcc.OpPut, Key: "/pod", Value: []byte(node)}},
		}})
		return a.Err == nil && a.Txn.Succeeded
	}
	first := lead(1)
	if !bind(first, "n1") {
		t.Fatal("the holder was refused")
	}
	do(mvcc.Command{Kind: mvcc.KindLeaseRevoke, Lease: 1})
	if bind(first, "n2") {
		t.Fatal("a write after the end of the term went through")
	}
	second := lead(2)
	if bind(first, "n3") {
		t.Fatal("a write of the old term went through in the new one")
	}
	if !bind(second, "n4") {
		t.Fatal("the new holder was refused")
	}
	if second.Epoch() <= first.Epoch() {
		t.Fatal("epochs do not grow")
	}
}
