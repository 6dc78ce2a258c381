package wal

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// BenchmarkLatency appends single entries to a segment whose blocks were only
// allocated, and to one whose blocks were written before.
func BenchmarkLatency(b *testing.B) {
	for _, kind := range []string{"allocated", "written"} {
		b.Run(kind, func(b *testing.B) {
			l := opened(b)
			defer l.Close()
			if kind == "written" {
				if l.filer.spare = l.filer.makeSpare() == nil; !l.filer.spare {
					b.Fatal("no spare segment")
				}
			}
			took := make([]time.Duration, b.N)
			b.ResetTimer()
			for i := range b.N {
				start := time.Now()
				if err := l.StoreLogs([]*raft.Log{{Index: uint64(i) + 1, Term: 1, Data: make([]byte, 256)}}); err != nil {
					b.Fatal(err)
				}
				took[i] = time.Since(start)
			}
			b.StopTimer()
			slices.Sort(took)
			for _, q := range []float64{0.5, 0.99} {
				b.ReportMetric(float64(took[int(q*float64(b.N-1))].Microseconds()), fmt.Sprintf("p%.0f-µs", q*100))
			}
		})
	}
}

func opened(b *testing.B) *Log {
	b.Helper()
	l, err := Open(filepath.Join(b.TempDir(), "wal"), 0)
	if err != nil {
		b.Fatal(err)
	}
	return l
}
