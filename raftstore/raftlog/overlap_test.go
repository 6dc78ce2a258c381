package raftlog

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/raftfix"
	"github.com/balsahq/balsa/raftstore/raftstoretest"
)

// leading returns the Store of a leader with followers, on a disk that needs a second for each write.
func leading(t *testing.T) (sim *raftstoretest.Disk, d *Store, failed *atomic.Int64) {
	sim, d = newOnDisk(t)
	sim.Slow(time.Second, time.Second)
	failed = new(atomic.Int64)
	d.WriteBeside(Leader{Followed: func() bool { return true }, WriteFailed: func() { failed.Add(1) }})
	t.Cleanup(d.settle)
	return sim, d, failed
}

func numbered(from, to uint64) (out []*raft.Log) {
	for i := from; i <= to; i++ {
		out = append(out, &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: []byte{byte(i)}})
	}
	return out
}

// took is how long fn takes.
func took(fn func()) time.Duration {
	began := time.Now()
	fn()
	return time.Since(began)
}

func TestTheOverlapIsReadFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d, _ := leading(t)
		if d := took(func() {
			if err := d.StoreLogs(numbered(1, 3)); err != nil {
				t.Error(err)
			}
		}); d != 0 {
			t.Errorf("it was waited for %v", d)
		}
		d.cache.drop(1, 3)
		first, _ := d.FirstIndex()
		last, _ := d.LastIndex()
		if first != 1 || last != 3 || sim.Holds(1, 0) || d.overlap.onDisk(1) {
			t.Error(first, last, sim.Holds(1, 0))
		}
		for range 4 {
			for i := uint64(1); i <= 3; i++ {
				var l raft.Log
				if err := d.GetLog(i, &l); err != nil || l.Index != i || l.Data[0] != byte(i) {
					t.Error(i, l, err)
				}
			}
			time.Sleep(900 * time.Millisecond)
		}
		var l raft.Log
		if err := d.GetLog(4, &l); !errors.Is(err, raft.ErrLogNotFound) || !d.overlap.onDisk(3) || !sim.Holds(3, 1) {
			t.Error("not written", err)
		}
	})
}

func TestOneAppendIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, d, _ := leading(t)
		const each = 5
		for i := range uint64(10) {
			took := took(func() {
				if err := d.StoreLogs(numbered(each*i+1, each*i+each)); err != nil {
					t.Fatal(err)
				}
			})
			if (took == 0) != (i == 0) {
				t.Errorf("append %d took %v", i, took)
			}
			if n := len(d.overlap.logs); n != each {
				t.Fatalf("%d entries are in memory only", n)
			}
		}
		d.settle()
		if n := len(d.overlap.logs); n != 0 {
			t.Error(n, "are left")
		}
	})
}

// TestWritesAfterTheOverlapWaitForIt: the term, the configuration, and the removal of entries that are not on disk yet wait until the
// overlap is on disk.
func TestWritesAfterTheOverlapWaitForIt(t *testing.T) {
	conf := &raft.Log{Index: 4, Term: 1, Type: raft.LogConfiguration}
	for what, do := range map[string]func(*Store) error{
		"the term":          func(d *Store) error { return d.SetUint64([]byte(keyTerm), 2) },
		"the vote":          func(d *Store) error { return d.Set([]byte("LastVoteCand"), []byte("b")) },
		"the configuration": func(d *Store) error { return d.StoreLogs([]*raft.Log{conf}) },
		"what is removed":   func(d *Store) error { return d.DeleteRange(1, 3) },
		"the end of before": func(d *Store) error { return d.DeleteRange(1, 1) },
		"a gap":             func(d *Store) error { return d.StoreLogs(numbered(9, 9)) },
		"the end":           func(d *Store) error { return d.Close() },
		"a leader alone": func(d *Store) error {
			d.WriteBeside(Leader{Followed: func() bool { return false }})
			return d.StoreLogs(numbered(4, 4))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			sim, d, _ := leading(t)
			sim.Slow(0, 0)
			d.leader.Load().Followed = func() bool { return false }
			if err := d.StoreLogs(numbered(1, 1)); err != nil {
				t.Fatal(err)
			}
			d.leader.Load().Followed = func() bool { return true }
			sim.Slow(time.Second, time.Second)
			if err := d.StoreLogs(numbered(2, 3)); err != nil {
				t.Fatal(err)
			}
			tail := d.overlap
			if err := do(d); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !tail.onDisk(3) {
				t.Errorf("%s did not wait", what)
			}
			d.settle()
		})
	}
}

func TestAnOverlapThatTheDiskRefusesIsReportedAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d, failed := leading(t)
		sim.Refuse(syscall.ENOSPC)
		if err := d.StoreLogs(numbered(1, 2)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !errors.Is(d.Refused(), errdefs.ErrDiskFull) || failed.Load() == 0 {
			t.Error("the refusal was not reported", d.Refused())
		}
		for range 2 {
			if err := d.StoreLogs(numbered(3, 3)); !errors.Is(err, errdefs.ErrDiskFull) {
				t.Error("Raft goes on to lead", err)
			}
		}
		if err := d.overlap.await(2, nil, failFast); err == nil {
			t.Error("another server's copy was counted")
		}
		if last, _ := d.LastIndex(); last != 2 {
			t.Error("Raft believes in 2 entries, the log in", last)
		}
		time.AfterFunc(5*time.Second, func() { sim.Refuse(nil) })
		if err := d.SetUint64([]byte(keyTerm), 2); err != nil || !sim.Holds(2, 1) || d.Refused() != nil {
			t.Error("the next term began without the entries of the last", err, d.Refused())
		}
	})
}

func TestAStoreClosesWhileItsDiskRefusesTheOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d, _ := leading(t)
		sim.Refuse(syscall.EIO)
		if err := d.StoreLogs(numbered(1, 2)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		close(d.stop)
		if err := d.Close(); err != nil || sim.Holds(1, 0) {
			t.Error(err)
		}
	})
}

// answers is a follower that answers at once.
type answers struct{ raft.Transport }

func (answers) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, _ *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	resp.Success = true
	return nil
}

func (answers) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return &answersPipe{out: make(chan raft.AppendFuture, 8)}, nil
}

type answersPipe struct{ out chan raft.AppendFuture }

func (p *answersPipe) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	resp.Success = true
	f := answered{req: req, resp: resp}
	p.out <- f
	return f, nil
}
func (p *answersPipe) Consumer() <-chan raft.AppendFuture { return p.out }
func (p *answersPipe) Close() error                       { return nil }

type answered struct {
	req  *raft.AppendEntriesRequest
	resp *raft.AppendEntriesResponse
}

func (answered) Error() error                            { return nil }
func (answered) Start() time.Time                        { return time.Time{} }
func (f answered) Request() *raft.AppendEntriesRequest   { return f.req }
func (f answered) Response() *raft.AppendEntriesResponse { return f.resp }

func TestAFollowersCopyCountsWhenTheLeadersDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, d, _ := leading(t)
		a := NewAckTransport(raftfix.Ballot{Transport: answers{}}, d)
		if err := d.StoreLogs(numbered(1, 1)); err != nil {
			t.Fatal(err)
		}
		if d := took(func() {
			_ = a.AppendEntries("", "", &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
		}); d != 0 {
			t.Error("a message without entries waited", d)
		}
		err := a.AppendEntries("", "", &raft.AppendEntriesRequest{Entries: numbered(1, 1)}, &raft.AppendEntriesResponse{})
		if err != nil || !sim.Holds(1, 1) {
			t.Error("an append was answered before the leader had it", err)
		}
		p, err := a.AppendEntriesPipeline("", "")
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for i := uint64(2); i <= 4; i++ {
			if err := d.StoreLogs(numbered(i, i)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.AppendEntries(&raft.AppendEntriesRequest{Entries: numbered(i, i)}, &raft.AppendEntriesResponse{}); err != nil {
				t.Fatal(err)
			}
		}
		for i := uint64(2); i <= 4; i++ {
			f := <-p.Consumer()
			if got := f.Request().Entries[0].Index; got != i || !sim.Holds(i, 1) {
				t.Errorf("answer %d is of entry %d, on disk: %v", i, got, sim.Holds(got, 1))
			}
		}
	})
}

func TestAPipelineClosesWhileAnAnswerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, d, _ := leading(t)
		p, err := NewAckTransport(raftfix.Ballot{Transport: answers{}}, d).AppendEntriesPipeline("", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := d.StoreLogs(numbered(1, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.AppendEntries(&raft.AppendEntriesRequest{Entries: numbered(1, 1)}, &raft.AppendEntriesResponse{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if d := took(func() { _ = p.Close() }); d != 0 {
			t.Error("it took", d)
		}
		d.settle()
	})
}
