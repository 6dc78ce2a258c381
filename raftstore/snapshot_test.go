package raftstore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// writeSnapshot and readSnapshot are for tests that care for the state alone.
func writeSnapshot(w io.Writer, r *mvcc.Root) error {
	_, err := mvcc.WriteSnapshotAt(w, r, 0, 0)
	return err
}

func readSnapshot(r *bufio.Reader) (*mvcc.State, error) {
	s, _, err := mvcc.ReadSnapshotAt(r)
	return s, err
}

// snapshotOf is m as a snapshot of the newest format.
func snapshotOf(t testing.TB, m *machine) ([]byte, mvcc.SnapshotInfo) {
	t.Helper()
	var b bytes.Buffer
	info, err := mvcc.WriteSnapshotAt(&b, m.root.Load(), 12, 3)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), info
}

func TestTheSecondSnapshotFormatDoesNotChange(t *testing.T) {
	m := goldenMachine(t)
	got, info := snapshotOf(t, m)
	path := filepath.Join("testdata", "snapshot-v2.hex")
	if *update {
		write(t, path, []byte(hex.EncodeToString(got)+"\n"))
	}
	want, err := hex.DecodeString(strings.TrimSpace(string(read(t, path))))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("snapshot is now\n%x\nwas\n%x", got, want)
	}
	s, read, err := mvcc.ReadSnapshotAt(bufio.NewReader(bytes.NewReader(want)))
	if err != nil {
		t.Fatal(err)
	}
	if s.Capture().View.Hash() != m.root.Load().View.Hash() || read != info {
		t.Errorf("%+v reads back as %+v", info, read)
	}
	verified, err := mvcc.VerifySnapshot(bytes.NewReader(want))
	if err != nil || verified != info {
		t.Errorf("%+v is verified as %+v, %v", info, verified, err)
	}
	if info.Index != 12 || info.Term != 3 || info.Bytes != int64(len(want)) || info.Format != 2 ||
		info.Keys != int64(m.root.Load().View.Len()) || info.Revision != m.root.Load().View.Rev {
		t.Errorf("%+v", info)
	}
}

func TestTheFirstSnapshotFormatIsVerified(t *testing.T) {
	b, err := hex.DecodeString(strings.TrimSpace(string(read(t, filepath.Join("testdata", "snapshot-v1.hex")))))
	if err != nil {
		t.Fatal(err)
	}
	info, err := mvcc.VerifySnapshot(bytes.NewReader(b))
	if err != nil || info.Format != 1 || info.Revision == 0 || info.Bytes != int64(len(b)) {
		t.Fatalf("%+v, %v", info, err)
	}
}

func TestEveryByteOfTheSecondFormatCounts(t *testing.T) {
	whole, _ := snapshotOf(t, goldenMachine(t))
	for i := range whole {
		for _, bad := range [][]byte{whole[:i], flip(whole, i)} {
			_, err := mvcc.VerifySnapshot(bytes.NewReader(bad))
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
				t.Fatalf("byte %d of %d: %v", i, len(whole), err)
			}
			if _, err := readSnapshot(bufio.NewReader(bytes.NewReader(bad))); err == nil {
				t.Fatalf("byte %d of %d: restored", i, len(whole))
			}
		}
	}
	if _, err := mvcc.VerifySnapshot(bytes.NewReader(append(whole, 0))); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}

// TestALyingSnapshotTakesNoMemory: lengths and counts that promise much are
// believed only as far as bytes arrive.
func TestALyingSnapshotTakesNoMemory(t *testing.T) {
	for name, b := range map[string][]byte{
		"a long frame":     append(append(bytes.Clone(snapshotMagic), 2), binary.AppendUvarint(nil, 64<<20)...),
		"an endless frame": append(append(bytes.Clone(snapshotMagic), 2), binary.AppendUvarint(nil, 1<<62)...),
		"many leases":      lyingHead(1<<62, 0, 0),
		"many keys":        lyingHead(0, 1<<62, 0),
		"many events":      lyingHead(0, 0, 1<<62),
		"too many":         lyingHead(1<<63, 1<<63, 1<<63),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := readSnapshot(bufio.NewReader(bytes.NewReader(b))); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := mvcc.VerifySnapshot(bytes.NewReader(b)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
			t.Errorf("%s: %d bytes of memory for %d of input", name, n, len(b))
		}
	}
}

// lyingHead is the beginning of a snapshot that counts so many parts.
func lyingHead(leases, keys, events uint64) []byte {
	b := append(bytes.Clone(snapshotMagic), 2)
	head := binary.AppendVarint(binary.AppendVarint(nil, 5), 5)
	for _, n := range []uint64{leases, keys, events, 1, 1, keys} {
		head = binary.AppendUvarint(head, n)
	}
	b = append(binary.AppendUvarint(b, uint64(len(head))), head...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, diskfile.Castagnoli))
}

func TestARebasedStateHasNoPast(t *testing.T) {
	for _, current := range []int64{1, 500} {
		whole, info := snapshotOf(t, goldenMachine(t))
		s, _, err := mvcc.ReadSnapshotAt(bufio.NewReader(bytes.NewReader(whole)))
		if err != nil {
			t.Fatal(err)
		}
		keys := s.Capture().View.Len()
		s.Rebase(current)
		want := max(current, info.Revision) + 1
		r := s.Capture()
		if r.View.Rev != want || r.Hist.Compacted() != want || len(r.Hist.Events) != 0 || r.View.Len() != keys {
			t.Fatalf("revision %d, compacted %d, %d events, %d keys", r.View.Rev, r.Hist.Compacted(), len(r.Hist.Events), r.View.Len())
		}
		for _, rev := range []int64{info.Revision, current, want - 1} {
			if _, err := r.Hist.ViewAt(rev, r.View); !errors.Is(err, ErrCompacted) {
				t.Fatalf("revision %d: %v", rev, err)
			}
		}
		if v, err := r.Hist.ViewAt(want, r.View); err != nil || v.Len() != keys {
			t.Fatal(err)
		}
		// It goes on from there, as any state does.
		c := mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/new"}}}}
		if a := s.Apply(&c); a.Err != nil || a.Txn.Revision != want+1 {
			t.Fatalf("%+v", a)
		}
		if _, err := mvcc.VerifySnapshot(bytes.NewReader(mustSnapshot(t, s))); err != nil {
			t.Fatal(err)
		}
	}
}

func mustSnapshot(t *testing.T, s *mvcc.State) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := mvcc.WriteSnapshotAt(&b, s.Capture(), 1, 1); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestASnapshotThatCannotBeWrittenSaysSo(t *testing.T) {
	m := goldenMachine(t)
	whole, _ := snapshotOf(t, m)
	for n := range whole {
		if _, err := mvcc.WriteSnapshotAt(&fullWriter{left: n}, m.root.Load(), 1, 1); !errors.Is(err, errFull) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

var errFull = errors.New("full")

// fullWriter takes so many bytes.
type fullWriter struct{ left int }

func (w *fullWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, errFull
	}
	w.left -= len(p)
	return len(p), nil
}

func FuzzVerifySnapshot(f *testing.F) {
	b, _ := snapshotOf(f, goldenMachine(f))
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, b := range [][]byte{data, refit(data)} {
			info, err := mvcc.VerifySnapshot(bytes.NewReader(b))
			s, _, rerr := mvcc.ReadSnapshotAt(bufio.NewReader(bytes.NewReader(b)))
			if err != nil {
				if rerr == nil || !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
					t.Fatal(err, rerr)
				}
				continue
			}
			if rerr != nil {
				if !strings.Contains(rerr.Error(), "snapshot makes") {
					t.Fatal(rerr)
				}
				continue
			}
			if _, err := mvcc.WriteSnapshotAt(io.Discard, s.Capture(), info.Index, info.Term); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// refit makes frames of the second format, with checksums that fit, of whatever
// lengths data says.
func refit(data []byte) []byte {
	out := append(bytes.Clone(snapshotMagic), 2)
	sum := crc32.Checksum(out, diskfile.Castagnoli)
	for len(data) > 0 {
		n := min(int(data[0])%64+1, len(data))
		frame := append(binary.AppendUvarint(nil, uint64(n-1)), data[1:n]...)
		data = data[n:]
		out, sum = append(out, frame...), crc32.Update(sum, diskfile.Castagnoli, frame)
		if n > 1 {
			out = binary.BigEndian.AppendUint32(out, sum)
		}
	}
	frame := []byte{0}
	return binary.BigEndian.AppendUint32(append(out, frame...), crc32.Update(sum, diskfile.Castagnoli, frame))
}

func ExampleVerifySnapshot() {
	info, err := mvcc.VerifySnapshot(strings.NewReader("not a snapshot"))
	fmt.Println(info.Keys, err)
	// Output: 0 raftstore: data is damaged: not a snapshot
}

// Values of one entry do not keep one another in memory, and those alone in
// theirs are not copied.
func TestValuesOfABatchKeepNoNeighbours(t *testing.T) {
	m := newMachine(newLessor())
	var b consensus.Entry
	for i := range 8 {
		c := mvcc.Command{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: fmt.Sprint("k", i), Value: bytes.Repeat([]byte{byte(i)}, 512)}}}}
		b.Items = append(b.Items, consensus.Item{Seq: uint64(i + 1), Command: c.Encode()})
	}
	b.Term = 1
	data := b.Encode()
	m.applyEntry(1, 1, data)
	m.publish()
	for i := range 8 {
		kv := m.root.Load().View.Get(fmt.Sprint("k", i))
		if len(kv.Value) != 512 || cap(kv.Value) != 512 || kv.Value[0] != byte(i) {
			t.Errorf("k%d: %d bytes of %d", i, len(kv.Value), cap(kv.Value))
		}
	}
	for i := range data {
		data[i] = 0xff
	}
	for i := range 8 {
		if kv := m.root.Load().View.Get(fmt.Sprint("k", i)); kv.Value[100] != byte(i) {
			t.Errorf("k%d lies in its entry still", i)
		}
	}
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

// snapshotMagic is what a snapshot begins with.
var snapshotMagic = []byte("balsa-kv")
