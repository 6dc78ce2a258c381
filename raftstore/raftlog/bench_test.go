package raftlog

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"
)

// openFile opens a log of a test's.
func openFile(t testing.TB, dir string, kind Kind) File {
	t.Helper()
	s, err := Open(Options{Dir: dir, Kind: kind, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s.file
}

// BenchmarkLog appends batches to each kind of log file.
func BenchmarkLog(b *testing.B) {
	for _, kind := range Kinds {
		for _, size := range []int{256, 4096} {
			for _, batch := range []int{1, 16, 64, 512} {
				b.Run(fmt.Sprintf("%s/%dB/batch%d", kind, size, batch), func(b *testing.B) { benchLog(b, kind, size, batch) })
			}
		}
	}
}

func benchLog(b *testing.B, kind Kind, size, batch int) {
	l := openFile(b, b.TempDir(), kind)
	defer l.Close()
	data, next := make([]byte, size), uint64(0)
	for i := range data {
		data[i] = byte(i)
	}
	b.SetBytes(int64(size * batch))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		logs := make([]*raft.Log, batch)
		for i := range logs {
			next++
			logs[i] = &raft.Log{Index: next, Term: 1, Data: data}
		}
		if err := l.StoreLogs(logs); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLogRead reads entries one by one, as replication does what is no
// longer in memory.
func BenchmarkLogRead(b *testing.B) {
	for _, kind := range Kinds {
		b.Run(string(kind), func(b *testing.B) {
			const n = 20000
			l := openFile(b, b.TempDir(), kind)
			defer l.Close()
			for i := uint64(1); i < n; i += 500 {
				var logs []*raft.Log
				for j := i; j < i+500; j++ {
					logs = append(logs, &raft.Log{Index: j, Term: 1, Data: make([]byte, 1024)})
				}
				if err := l.StoreLogs(logs); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			for i := range b.N {
				var e raft.Log
				if err := l.GetLog(uint64(i%n)+1, &e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLogStable stores terms.
func BenchmarkLogStable(b *testing.B) {
	for _, kind := range Kinds {
		b.Run(string(kind), func(b *testing.B) {
			l := openFile(b, b.TempDir(), kind)
			defer l.Close()
			for i := range b.N {
				if err := l.Set([]byte("CurrentTerm"), binary.BigEndian.AppendUint64(nil, uint64(i))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLogOpen opens a log of 50,000 entries of 1 KiB, checking them all.
func BenchmarkLogOpen(b *testing.B) {
	for _, kind := range Kinds {
		b.Run(string(kind), func(b *testing.B) {
			const n = 50000
			dir := b.TempDir()
			l := openFile(b, dir, kind)
			for i := uint64(1); i < n; i += 500 {
				var logs []*raft.Log
				for j := i; j < i+500; j++ {
					logs = append(logs, &raft.Log{Index: j, Term: 1, Data: make([]byte, 1024)})
				}
				if err := l.StoreLogs(logs); err != nil {
					b.Fatal(err)
				}
			}
			l.Close()
			b.ResetTimer()
			for range b.N {
				openFile(b, dir, kind).Close()
			}
		})
	}
}
