package raftstore

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

var (
	scaleKeys  = flag.Int("scale-keys", 0, "keys of BenchmarkScale; 0 leaves it out (the aim is 1000000)")
	scaleValue = flag.Int("scale-value", 2147, "bytes of a value in BenchmarkScale")
	scaleLog   = flag.String("scale-log", string(raftlog.WAL), "log store of BenchmarkScale")
	scaleDir   = flag.String("scale-dir", "", "where BenchmarkScale works; a temporary directory when empty")
)

// BenchmarkScale fills a store and says what it costs: memory per key, a
// snapshot and the writes that wait meanwhile, a restart. One line each.
func BenchmarkScale(b *testing.B) {
	if *scaleKeys == 0 {
		b.Skip("wants -scale-keys")
	}
	dir := *scaleDir
	if dir == "" {
		dir = b.TempDir()
	}
	for range b.N {
		scale(b, filepath.Join(dir, "store"))
		if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
			b.Fatal(err)
		}
	}
}

func scale(b *testing.B, dir string) {
	base := memory(b)
	s, err := Open(Config{Dir: dir, LogKind: raftlog.Kind(*scaleLog), SnapshotEntries: 1 << 60})
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	scaleFill(b, s)
	b.Logf("fill: %d keys of %d B in %v", *scaleKeys, *scaleValue, time.Since(start).Round(time.Millisecond))
	if err := s.Compact(b.Context(), s.View().Revision()); err != nil {
		b.Fatal(err)
	}
	used := memory(b)
	values := int64(*scaleKeys) * int64(*scaleValue)
	perKey := func(n int64) float64 { return float64(n-values) / float64(*scaleKeys) }
	b.Logf("memory: heap %d MiB, %.0f B per key beside its value; RSS %d MiB, %.0f B", (used.heap-base.heap)>>20, perKey(used.heap-base.heap),
		(used.rss-base.rss)>>20, perKey(used.rss-base.rss))
	b.ReportMetric(perKey(used.heap-base.heap), "heap-B/key")
	scaleStalls(b, s, "quiet", func() { time.Sleep(5 * time.Second) })
	took := scaleStalls(b, s, "snapshot", func() {
		if err := s.Snapshot(); err != nil {
			b.Error(err)
		}
	})
	b.ReportMetric(took.Seconds(), "snapshot-s")
	scaleStalls(b, s, "after", func() { time.Sleep(5 * time.Second) })
	want := s.View().Len()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	s = nil
	debug.FreeOSMemory()
	start = time.Now()
	s, err = Open(Config{Dir: dir, LogKind: raftlog.Kind(*scaleLog)})
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("restart: %v, log up to entry %d", time.Since(start).Round(time.Millisecond), s.Progress().LastIndex)
	b.ReportMetric(time.Since(start).Seconds(), "restart-s")
	if n := s.View().Len(); n != want {
		b.Errorf("%d keys, want %d", n, want)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

func scaleFill(b *testing.B, s *Store) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 256 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(*scaleKeys); i = next.Add(1) {
				scalePut(b, s, i)
			}
		})
	}
	wg.Wait()
}

func scalePut(b *testing.B, s *Store, i int64) {
	key := fmt.Sprintf("/registry/pods/namespace-%02d/pod-%07d", i%50, i)
	v := bytes.Repeat([]byte{byte(i)}, *scaleValue)
	if _, err := s.Txn(context.Background(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: v}}}); err != nil {
		b.Error(err)
	}
}

// scaleStalls writes one key after another while what runs, and says how long
// writes waited.
func scaleStalls(b *testing.B, s *Store, name string, what func()) time.Duration {
	ctx, cancel := context.WithCancel(b.Context())
	type wait struct{ at, took time.Duration }
	var waits []time.Duration
	var long []wait
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := int64(1); ctx.Err() == nil; i++ {
			start := time.Now()
			scalePut(b, s, i%1000+1)
			waits = append(waits, time.Since(start))
			if d := time.Since(start); d > 20*time.Millisecond {
				long = append(long, wait{start.Sub(began).Round(time.Millisecond), d.Round(time.Millisecond)})
			}
		}
	})
	start := time.Now()
	what()
	took := time.Since(start)
	cancel()
	wg.Wait()
	slices.Sort(waits)
	at := func(q float64) time.Duration { return waits[int(q*float64(len(waits)-1))].Round(10 * time.Microsecond) }
	over := len(waits) - sortedAfter(waits, 20*time.Millisecond)
	b.Logf("%s: %v; %d writes meanwhile: median %v, 99 %% %v, 99.9 %% %v, longest %v, %d over 20 ms", name, took.Round(time.Millisecond),
		len(waits), at(0.5), at(0.99), at(0.999), at(1), over)
	if len(long) > 0 {
		slices.SortFunc(long, func(a, b wait) int { return int(b.took - a.took) })
		b.Logf("%s: the longest waits, when and how long: %v", name, long[:min(5, len(long))])
	}
	b.ReportMetric(float64(at(1).Microseconds())/1000, name+"-stall-ms")
	return took
}

func sortedAfter(sorted []time.Duration, d time.Duration) int {
	i, _ := slices.BinarySearch(sorted, d)
	return i
}

type used struct{ heap, rss int64 }

func memory(b *testing.B) used {
	b.Helper()
	debug.FreeOSMemory()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return used{heap: int64(ms.HeapAlloc), rss: kb << 10}
}
