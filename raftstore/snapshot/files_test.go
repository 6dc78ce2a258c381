package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// sent writes raw into a snapshot as one that another peer sends, in pieces.
func sent(t testing.TB, s *Files, index uint64, raw []byte) (string, error) {
	t.Helper()
	conf := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}
	sink, err := s.Create(raft.SnapshotVersionMax, index, 1, conf, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for b := range slices.Chunk(raw, 1000) {
		if _, err := sink.Write(b); err != nil {
			if err2 := sink.Cancel(); err2 != nil {
				t.Error(err2)
			}
			return "", err
		}
	}
	return sink.ID(), sink.Close()
}

// A snapshot that another peer sends is refused before it takes a snapshot's place, wherever
// it is damaged, and leaves nothing behind.
func TestADamagedSnapshotThatIsSentNeverBecomesOne(t *testing.T) {
	raw := mustSnapshot(t, filledState(300))
	path := filepath.Join(t.TempDir(), "snapshots")
	s, err := Open(Options{Path: path, Keep: 2, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	id, err := sent(t, s, 7, raw)
	if err != nil {
		t.Fatalf("a whole snapshot: %v", err)
	}
	broken := map[string][]byte{
		"cut short":     raw[:len(raw)/2],
		"without a sum": raw[:len(raw)-4],
		"too long":      append(bytes.Clone(raw), 0),
		"empty head":    raw[:3],
		"nothing":       nil,
	}
	for i := 0; i < len(raw); i += len(raw)/7 + 1 {
		b := bytes.Clone(raw)
		b[i] ^= 0x10
		broken[fmt.Sprintf("byte %d", i)] = b
	}
	for name, b := range broken {
		if _, err := sent(t, s, 9, b); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != id {
		t.Errorf("left: %v, want %s alone", entries, id)
	}
}

// A snapshot that this process wrote or checked is not read twice before it is
// given away; one that it has not is.
func TestASnapshotIsCheckedOnceBeforeItIsGivenAway(t *testing.T) {
	raw := mustSnapshot(t, filledState(300))
	path := filepath.Join(t.TempDir(), "snapshots")
	s, err := Open(Options{Path: path, Keep: 2, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	id, err := sent(t, s, 7, raw)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(path, id, "state.bin")
	damaged := bytes.Clone(raw)
	damaged[len(damaged)/2] ^= 1
	open := func(s *Files) error {
		_, r, err := s.Open(id)
		if err == nil {
			err = r.Close()
		}
		return err
	}
	if err := open(s); err != nil {
		t.Fatal(err)
	}
	another, err := Open(Options{Path: path, Keep: 2, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(another); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("a snapshot nobody has checked: %v, want ErrCorrupt", err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(another); err != nil {
		t.Error(err)
	}
}

func FuzzDecodeSnapshotMeta(f *testing.F) {
	text, err := json.Marshal(raft.SnapshotMeta{
		Version: 1, ID: "2-7-1", Index: 7, Term: 2, ConfigurationIndex: 1,
		Configuration: raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("2-7-1", text)
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		m, err := decodeMeta(name, data)
		if err != nil {
			if !errors.Is(err, errdefs.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if m.ID != name || len(m.Configuration.Servers) == 0 || m.ConfigurationIndex > m.Index {
			t.Fatalf("%+v", m)
		}
	})
}

func mustSnapshot(t *testing.T, s *mvcc.State) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := mvcc.WriteSnapshotAt(&b, s.Capture(), 1, 1); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// filledState has n keys and a history.
func filledState(n int) *mvcc.State {
	s := mvcc.NewState()
	for i := range n {
		written(s, fmt.Sprintf("key-%04d", i/2), bytes.Repeat([]byte{byte(i)}, 100))
	}
	return s
}

// written puts one key.
func written(s *mvcc.State, key string, value []byte) {
	s.Apply(&mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: value}}}})
}
