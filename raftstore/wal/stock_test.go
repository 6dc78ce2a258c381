package wal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
)

// TestStockSegmentsPassDamageOver is the reason for this package's own segments. raft-wal's open a damaged log without an error: a
// flipped bit before the last batch is read back as the entry, and a flipped bit in the last batch removes the batch. Once raft-wal
// returns an error in both cases, this test fails, and its segments will do.
func TestStockSegmentsPassDamageOver(t *testing.T) {
	for damaged, want := range map[int]string{8: "entry 8 differs, the log ends at 9", 9: "the log ends at 8"} {
		dir := t.TempDir()
		writeStock(t, dir, 9)
		flipStock(t, dir, stockEntry(damaged))
		w := openStock(t, dir)
		last, err := w.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("the log ends at %d", last)
		for i := 1; i <= int(last); i++ {
			var l raft.Log
			if err := w.GetLog(uint64(i), &l); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(l.Data, stockEntry(i)) {
				got = fmt.Sprintf("entry %d differs, %s", i, got)
			}
		}
		if got != want {
			t.Errorf("entry %d is damaged on disk: %s, expected %s", damaged, got, want)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func stockEntry(i int) []byte {
	return fmt.Appendf(nil, "%d, an entry whose text is found in the file", i)
}

func openStock(t *testing.T, dir string) *raftwal.WAL {
	t.Helper()
	w, err := raftwal.Open(dir, raftwal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// writeStock appends n entries, each synced.
func writeStock(t *testing.T, dir string, n int) {
	t.Helper()
	w := openStock(t, dir)
	for i := 1; i <= n; i++ {
		if err := w.StoreLogs([]*raft.Log{{Index: uint64(i), Term: 1, Data: stockEntry(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// flipStock flips a bit of the entry in the one segment.
func flipStock(t *testing.T, dir string, entry []byte) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, entry)
	if at < 0 {
		t.Fatal("the entry is not in the file")
	}
	b[at+len(entry)-1] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}
