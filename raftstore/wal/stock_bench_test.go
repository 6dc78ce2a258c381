package wal

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
)

// closingLog is a log that can be closed.
type closingLog interface {
	raft.LogStore
	Close() error
}

// ownLog is this package's log.
type ownLog struct{ *Log }

func (o ownLog) StoreLog(l *raft.Log) error { return o.StoreLogs([]*raft.Log{l}) }

// logs are this package's log, and raft-wal with its own segments.
var logs = []struct {
	name string
	open func(b *testing.B) closingLog
}{
	{"balsa", func(b *testing.B) closingLog { return ownLog{opened(b)} }},
	{"stock", func(b *testing.B) closingLog {
		b.Helper()
		w, err := raftwal.Open(b.TempDir(), raftwal.WithLogger(hclog.NewNullLogger()))
		if err != nil {
			b.Fatal(err)
		}
		return w
	}},
}

func batchFrom(next uint64, n int, data []byte) []*raft.Log {
	out := make([]*raft.Log, n)
	for i := range out {
		out[i] = &raft.Log{Index: next + uint64(i), Term: 1, Data: data}
	}
	return out
}

func reportTimes(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
}

// BenchmarkStock does to each log what a cluster does: appends that are synced, reads of the newest entries, and removals at the
// end (a conflict) and at the beginning (after a snapshot).
func BenchmarkStock(b *testing.B) {
	for _, size := range []int{300, 4 << 10} {
		for _, n := range []int{1, 16, 64} {
			for _, l := range logs {
				b.Run(fmt.Sprintf("append/%dB/batch%d/%s", size, n, l.name), func(b *testing.B) { benchAppend(b, l.open(b), size, n) })
			}
		}
	}
	for _, l := range logs {
		b.Run("readtail/"+l.name, func(b *testing.B) { benchReadTail(b, l.open(b)) })
	}
	for _, l := range logs {
		b.Run("truncate/"+l.name, func(b *testing.B) { benchTruncate(b, l.open(b)) })
	}
}

func benchAppend(b *testing.B, l closingLog, size, n int) {
	defer l.Close()
	data, took, next := make([]byte, size), make([]time.Duration, 0, b.N), uint64(1)
	for i := range data {
		data[i] = byte(i)
	}
	b.SetBytes(int64(size * n))
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		if err := l.StoreLogs(batchFrom(next, n, data)); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		next += uint64(n)
	}
	b.StopTimer()
	reportTimes(b, took)
}

// filledLog appends 8192 entries of 1 KiB.
func filledLog(b *testing.B, l closingLog) {
	for i := uint64(1); i <= 8192; i += 256 {
		if err := l.StoreLogs(batchFrom(i, 256, make([]byte, 1024))); err != nil {
			b.Fatal(err)
		}
	}
}

func benchReadTail(b *testing.B, l closingLog) {
	defer l.Close()
	filledLog(b, l)
	b.ResetTimer()
	for i := range b.N {
		var e raft.Log
		if err := l.GetLog(8192-uint64(i%512), &e); err != nil {
			b.Fatal(err)
		}
	}
}

func benchTruncate(b *testing.B, l closingLog) {
	defer l.Close()
	filledLog(b, l)
	took := make([]time.Duration, 0, b.N)
	next, data := uint64(8193), make([]byte, 1024)
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		if err := l.StoreLogs(batchFrom(next, 64, data)); err != nil {
			b.Fatal(err)
		}
		next += 64
		lo, hi := next-32, next-1 // a conflict
		if i%2 == 1 {
			first, err := l.FirstIndex()
			if err != nil {
				b.Fatal(err)
			}
			lo, hi = first, first+63 // after a snapshot
		}
		b.StartTimer()
		began := time.Now()
		if err := l.DeleteRange(lo, hi); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		if i%2 == 0 {
			next -= 32
		}
	}
	b.StopTimer()
	reportTimes(b, took)
}
