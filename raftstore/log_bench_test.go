package raftstore

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/wal"
)

// openLog opens the log file of a directory of a test's.
func openLog(t testing.TB, dir, store string) logFile {
	t.Helper()
	var l logFile
	var err error
	if store == LogStoreWAL {
		l, err = wal.Open(filepath.Join(dir, "wal"), 0)
	} else {
		l, err = openBoltFile(filepath.Join(dir, "raft.db"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// BenchmarkLog appends batches to each kind of log file.
func BenchmarkLog(b *testing.B) {
	for _, store := range []string{LogStoreWAL, LogStoreBolt} {
		for _, size := range []int{256, 4096} {
			for _, batch := range []int{1, 16, 64, 512} {
				b.Run(fmt.Sprintf("%s/%dB/batch%d", store, size, batch), func(b *testing.B) { benchLog(b, store, size, batch) })
			}
		}
	}
}

func benchLog(b *testing.B, store string, size, batch int) {
	l := openLog(b, b.TempDir(), store)
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
	for _, store := range []string{LogStoreWAL, LogStoreBolt} {
		b.Run(store, func(b *testing.B) {
			const n = 20000
			l := openLog(b, b.TempDir(), store)
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
	for _, store := range []string{LogStoreWAL, LogStoreBolt} {
		b.Run(store, func(b *testing.B) {
			l := openLog(b, b.TempDir(), store)
			defer l.Close()
			for i := range b.N {
				if err := l.Set([]byte("CurrentTerm"), indexKey(uint64(i))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLogOpen opens a log of 50,000 entries of 1 KiB, checking them all.
func BenchmarkLogOpen(b *testing.B) {
	for _, store := range []string{LogStoreWAL, LogStoreBolt} {
		b.Run(store, func(b *testing.B) {
			const n = 50000
			dir := b.TempDir()
			l := openLog(b, dir, store)
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
				openLog(b, dir, store).Close()
			}
		})
	}
}

// BenchmarkStoreLog writes to a single voter through each kind of log.
func BenchmarkStoreLog(b *testing.B) {
	for _, store := range []string{LogStoreWAL, LogStoreBolt} {
		for _, clients := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("%s/%dclients", store, clients), func(b *testing.B) {
				benchStore(b, Config{Dir: b.TempDir(), LogStore: store}, clients, 256)
			})
		}
	}
}
