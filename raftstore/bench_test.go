package raftstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

func benchTxn(b *testing.B, clients, size int) {
	benchStore(b, Config{Dir: b.TempDir()}, clients, size)
}

func benchStore(b *testing.B, cfg Config, clients, size int) {
	s := open(b, cfg)
	value := make([]byte, size)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range clients {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				key := fmt.Sprintf("/registry/pods/ns/%d", n%10000)
				if _, err := s.Txn(context.Background(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: value}}}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}

func BenchmarkTxn1(b *testing.B)   { benchTxn(b, 1, 1024) }
func BenchmarkTxn64(b *testing.B)  { benchTxn(b, 64, 1024) }
func BenchmarkTxn512(b *testing.B) { benchTxn(b, 512, 1024) }

// BenchmarkLogKind writes to a single voter through each kind of log.
func BenchmarkLogKind(b *testing.B) {
	for _, kind := range raftlog.Kinds {
		for _, clients := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("%s/%dclients", kind, clients), func(b *testing.B) {
				benchStore(b, Config{Dir: b.TempDir(), LogKind: kind}, clients, 256)
			})
		}
	}
}

// BenchmarkWatchFanout: one write, a thousand watchers of its prefix and nine
// thousand of others.
func BenchmarkWatchFanout(b *testing.B) {
	s := open(b, Config{InMemory: true})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	var delivered atomic.Int64
	for i := range 10000 {
		prefix := "/hot/"
		if i >= 1000 {
			prefix = fmt.Sprintf("/cold/%d/", i)
		}
		w, err := s.Watch(WatchRequest{Key: prefix, RangeEnd: mvcc.PrefixEnd(prefix)})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			defer w.Close()
			for {
				batch, err := w.Next(ctx)
				if err != nil {
					return
				}
				delivered.Add(int64(len(batch.Events)))
			}
		})
	}
	b.ResetTimer()
	for i := range b.N {
		put(b, s, fmt.Sprintf("/hot/%d", i%100), "value")
	}
	for delivered.Load() < int64(b.N)*1000 {
		runtime.Gosched()
	}
	b.StopTimer()
	b.ReportMetric(float64(delivered.Load())/b.Elapsed().Seconds(), "events/s")
	cancel()
	wg.Wait()
}

// BenchmarkMemoryPerKey reports what a live key costs beside its own bytes.
func BenchmarkMemoryPerKey(b *testing.B) {
	const keys, size = 100_000, 1024
	for range b.N {
		before := heapInUse()
		m := newMachine(newLessor())
		for i := range keys {
			c := &mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: fmt.Sprintf("/registry/pods/default/pod-%06d", i), Value: make([]byte, size)}}}}
			m.apply(uint64(i+1), c.Encode())
			if i%64 == 0 {
				m.publish()
			}
		}
		c := &mvcc.Command{Kind: mvcc.KindCompact, Revision: m.state.Rev}
		m.apply(keys+1, c.Encode())
		m.publish()
		b.ReportMetric(float64(heapInUse()-before)/keys-size, "overhead-B/key")
		runtime.KeepAlive(m)
	}
}

// BenchmarkMemoryUnderWrites reports what a peer holds while values are replaced,
// as many at a time as busy clients make of it, and its history is as large as
// it may be: in all, and what of it the keys and their values are.
func BenchmarkMemoryUnderWrites(b *testing.B) {
	for _, c := range []struct{ keys, size int }{{10_000, 256}, {10_000, 4096}} {
		b.Run(fmt.Sprintf("%dx%d", c.keys, c.size), func(b *testing.B) {
			for range b.N {
				before := heapInUse()
				m := newMachine(newLessor())
				writeBatches(m, c.keys, c.size)
				b.ReportMetric(float64(heapInUse()-before)/(1<<20), "MiB")
				b.ReportMetric(float64(m.state.Bytes)/(1<<20), "live-MiB")
				b.ReportMetric(float64(m.root.Load().Hist.Bytes)/(1<<20), "history-MiB")
				b.ReportMetric(float64(len(m.root.Load().Hist.Events)), "events")
				runtime.KeepAlive(m)
			}
		})
	}
}

// writeBatches writes all keys and replaces values until the history was full for
// the third time.
func writeBatches(m *machine, keys, size int) {
	const each = 128
	var cfg Config
	cfg.setDefaults()
	keep := retention{age: cfg.HistoryAge, events: cfg.HistoryEvents, bytes: cfg.HistoryBytes}
	random := rand.New(rand.NewPCG(1, 2))
	index := uint64(0)
	for i, full := 0, 0; full < 3; i += each {
		e := consensus.Entry{Term: 1}
		for j := range each {
			key := i + j
			if key >= keys {
				key = random.IntN(keys)
			}
			c := mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: fmt.Sprintf("%016d", key), Value: make([]byte, size)}}}}
			e.Items = append(e.Items, consensus.Item{Seq: uint64(i + j + 1), Command: c.Encode()})
		}
		index++
		m.applyEntry(index, 1, e.Encode())
		m.publish()
		h := m.root.Load().Hist
		if rev := keep.decide(time.Unix(0, 0), &h, m.state.Rev); rev != 0 {
			if full++; full == 3 {
				return
			}
			index++
			m.apply(index, (&mvcc.Command{Kind: mvcc.KindCompact, Revision: rev}).Encode())
			m.publish()
		}
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc
}

// BenchmarkRestart opens a directory with 100,000 keys of 1 KiB.
func BenchmarkRestart(b *testing.B) {
	dir := b.TempDir()
	fill(b, dir, 100_000)
	b.ResetTimer()
	for range b.N {
		start := time.Now()
		s, err := Open(Config{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/open")
		if n := s.View().Len(); n < 100_000 {
			b.Fatal(n)
		}
		b.StopTimer()
		s.Close()
		b.StartTimer()
	}
}

// fill writes n keys with the store running as it does in service.
func fill(b *testing.B, dir string, n int) {
	s, err := Open(Config{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	var wg sync.WaitGroup
	for c := range 64 {
		wg.Go(func() {
			for i := c; i < n; i += 64 {
				key := fmt.Sprintf("/registry/pods/default/pod-%06d", i)
				if _, err := s.Txn(ctx, mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: make([]byte, 1024)}}}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
