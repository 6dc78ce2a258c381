package raftstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// appendMode is when a leader writes its log.
type appendMode string

const (
	appendBeside appendMode = "beside" // while its followers write theirs
	appendFirst  appendMode = "first"  // before
)

// BenchmarkOverlappedAppend writes through the leader of three servers on one disk, with the leader's append beside the
// followers' and before it. It reports writes per second and the 99th percentile of a write's time.
func BenchmarkOverlappedAppend(b *testing.B) {
	for _, clients := range []int{1, 16, 64} {
		for _, mode := range []appendMode{appendBeside, appendFirst} {
			b.Run(fmt.Sprintf("%dclients/%s", clients, mode), func(b *testing.B) { benchThreeServers(b, clients, mode) })
		}
	}
}

func benchThreeServers(b *testing.B, clients int, mode appendMode) {
	stores := threeOnDisk(b, mode)
	s, value := stores[0], make([]byte, 1024)
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex
		times []time.Duration
	)
	b.ResetTimer()
	for range clients {
		wg.Go(func() {
			var own []time.Duration
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				began := time.Now()
				key := fmt.Sprintf("/registry/pods/ns/%d", n%10000)
				if _, err := s.Txn(context.Background(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: value}}}); err != nil {
					b.Error(err)
					return
				}
				own = append(own, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, own...)
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
	for _, s := range stores {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}
}

// threeOnDisk begins a cluster of three servers; the first leads.
func threeOnDisk(b *testing.B, mode appendMode) []*Store {
	c := &trio{stores: map[string]*Store{}}
	ids, trans, stores := []string{"a", "b", "c"}, map[string]*raft.InmemTransport{}, []*Store{}
	for _, id := range ids {
		_, trans[id] = raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), 5*time.Second)
	}
	for _, from := range ids {
		for _, to := range ids {
			trans[from].Connect(raft.ServerAddress(to), trans[to])
		}
	}
	for i, id := range ids {
		s, err := Open(Config{Dir: b.TempDir(), ServerID: id, ClusterID: "test", Join: i > 0, appendFirst: mode == appendFirst,
			HeartbeatTimeout: 5 * time.Second, Transport: trans[id], Peers: wire{c, id}})
		if err != nil {
			b.Fatal(err)
		}
		c.stores[id] = s
		stores = append(stores, s)
	}
	for _, id := range ids[1:] {
		for _, step := range []func(context.Context, string) error{stores[0].AddLearner, stores[0].Promote} {
			if err := step(b.Context(), id); err != nil {
				b.Fatal(err)
			}
		}
	}
	return stores
}
