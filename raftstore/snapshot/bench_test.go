package snapshot

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

// snapshotForBench is a state of n keys, and its snapshot.
func snapshotForBench(b *testing.B, n, size int) (*mvcc.Root, []byte) {
	b.Helper()
	s := mvcc.NewState()
	for i := range n {
		written(s, fmt.Sprintf("/registry/pods/namespace-%02d/pod-%07d", i%50, i), bytes.Repeat([]byte{byte(i)}, size))
	}
	if a := s.Apply(&mvcc.Command{Kind: mvcc.KindCompact, Revision: s.Rev}); a.Err != nil {
		b.Fatal(a.Err)
	}
	r := s.Capture()
	var out bytes.Buffer
	if _, err := mvcc.WriteSnapshotAt(&out, r, 1, 1); err != nil {
		b.Fatal(err)
	}
	return r, out.Bytes()
}

// BenchmarkSnapshot is what a snapshot costs without a disk.
func BenchmarkSnapshot(b *testing.B) {
	r, raw := snapshotForBench(b, 50_000, 2147)
	run := func(name string, fn func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if err := fn(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("write", func() error {
		_, err := mvcc.WriteSnapshotAt(io.Discard, r, 1, 1)
		return err
	})
	run("verify", func() error {
		_, err := mvcc.VerifySnapshot(bytes.NewReader(raw))
		return err
	})
	run("restore", func() error {
		_, _, err := mvcc.ReadSnapshotAt(bufio.NewReaderSize(bytes.NewReader(raw), 1<<20))
		return err
	})
}

// BenchmarkSnapshotIsInstalled is the way of a snapshot from the disk of one peer
// into the state of another, without the network between.
func BenchmarkSnapshotIsInstalled(b *testing.B) {
	_, raw := snapshotForBench(b, 100_000, 2147)
	log := slog.New(slog.DiscardHandler)
	dir, idle := b.TempDir(), func() uint64 { return 0 }
	from, err := Open(Options{Path: filepath.Join(dir, "from"), Keep: 2, Logger: log, Applied: idle})
	if err != nil {
		b.Fatal(err)
	}
	id, err := sent(b, from, 1, raw)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		to, err := Open(Options{Path: filepath.Join(b.TempDir(), "to"), Keep: 2, Logger: log, Applied: idle})
		if err != nil {
			b.Fatal(err)
		}
		install(b, from, to, id)
	}
}

func install(b *testing.B, from, to *Files, id string) {
	b.Helper()
	m, r, err := from.Open(id)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	sink, err := to.Create(raft.SnapshotVersionMax, m.Index, m.Term, m.Configuration, m.ConfigurationIndex, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err = io.Copy(sink, r); err == nil {
		err = sink.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	_, r, err = to.Open(sink.ID())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	if _, _, err := mvcc.ReadSnapshotAt(bufio.NewReaderSize(r, 1<<20)); err != nil {
		b.Fatal(err)
	}
}
