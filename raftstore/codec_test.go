package raftstore

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/balsahq/balsa/raftstore/mvcc"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing to them")

// goldenCommands are one entry of every kind and every field.
var goldenCommands = map[string]mvcc.Command{
	"txn": {Kind: mvcc.KindTxn, Txn: mvcc.Txn{
		Compares: []mvcc.Compare{
			{Key: "/a", Target: mvcc.CompareMod, Result: mvcc.Equal, Int: 300},
			{Key: "/b", RangeEnd: "/c", Target: mvcc.CompareValue, Result: mvcc.Less, Value: []byte("v")},
			{Key: "/d", Target: mvcc.CompareLease, Result: mvcc.Greater, Int: -1},
		},
		Success: []mvcc.Op{
			{Type: mvcc.OpPut, Key: "/a", Value: []byte("value"), Lease: 77, PrevKV: true},
			{Type: mvcc.OpPut, Key: "/e", IgnoreValue: true, IgnoreLease: true},
			{Type: mvcc.OpDelete, Key: "/f", RangeEnd: "/g", PrevKV: true},
			{Type: mvcc.OpTxn, Txn: &mvcc.Txn{Failure: []mvcc.Op{{Type: mvcc.OpPut, Key: "/h"}}}},
		},
		Failure: []mvcc.Op{{Type: mvcc.OpRange, Key: "/a", RangeEnd: "\x00", Limit: 5, KeysOnly: true, CountOnly: true}},
	}},
	"grant":   {Kind: mvcc.KindLeaseGrant, Lease: 1 << 40, TTL: 15000},
	"revoke":  {Kind: mvcc.KindLeaseRevoke, Lease: 1 << 40},
	"compact": {Kind: mvcc.KindCompact, Revision: 123456},
}

func TestTheEntryFormatDoesNotChange(t *testing.T) {
	for name, c := range goldenCommands {
		path := filepath.Join("testdata", "entry-"+name+"-v1.hex")
		got := c.Encode()
		if *update {
			write(t, path, []byte(hex.EncodeToString(got)+"\n"))
		}
		want, err := hex.DecodeString(strings.TrimSpace(string(read(t, path))))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is now\n%x\nwas\n%x", name, got, want)
		}
		d, err := mvcc.DecodeCommand(want)
		if err != nil {
			t.Fatal(name, err)
		}
		d.Raw = 0
		if !reflect.DeepEqual(*d, c) {
			t.Errorf("%s reads back as\n%+v\nwant\n%+v", name, *d, c)
		}
	}
}

// goldenMachine has something of everything a snapshot can hold.
func goldenMachine(t testing.TB) *machine {
	m := newMachine(newLessor())
	for i, c := range []mvcc.Command{
		{Kind: mvcc.KindLeaseGrant, Lease: 5, TTL: 60000},
		{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/a", Value: []byte("1"), Lease: 5}, {Type: mvcc.OpPut, Key: "/b"}}}},
		{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/b", Value: []byte("2")}}}},
		{Kind: mvcc.KindCompact, Revision: 3},
		{Kind: mvcc.KindTxn, Txn: mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: "/c", Value: []byte("3")}, {Type: mvcc.OpDelete, Key: "/b"}}}},
	} {
		if a := m.apply(uint64(i+1), c.Encode()); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	m.publish()
	return m
}

func TestTheFirstSnapshotFormatIsRead(t *testing.T) {
	b, err := hex.DecodeString(strings.TrimSpace(string(read(t, filepath.Join("testdata", "snapshot-v1.hex")))))
	if err != nil {
		t.Fatal(err)
	}
	n := newMachine(newLessor())
	if err := n.restore(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if n.root.Load().View.Hash() != goldenMachine(t).root.Load().View.Hash() {
		t.Error("hash differs")
	}
	for i := range b {
		if _, err := readSnapshot(bufio.NewReader(bytes.NewReader(flip(b, i)))); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
}

func TestEveryByteOfASnapshotCounts(t *testing.T) {
	var b bytes.Buffer
	if err := writeSnapshot(&b, goldenMachine(t).root.Load()); err != nil {
		t.Fatal(err)
	}
	for i := range b.Len() {
		for _, bad := range [][]byte{b.Bytes()[:i], flip(b.Bytes(), i)} {
			_, err := readSnapshot(bufio.NewReader(bytes.NewReader(bad)))
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
				t.Fatalf("byte %d of %d: %v", i, b.Len(), err)
			}
		}
	}
	if _, err := readSnapshot(bufio.NewReader(bytes.NewReader(append(b.Bytes(), 0)))); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}

func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	b[i] ^= 1
	return b
}

func TestAnUnknownEntryIsNamedAndStopsTheMachine(t *testing.T) {
	m := newMachine(newLessor())
	for _, entry := range [][]byte{{2, byte(mvcc.KindTxn)}, {mvcc.CommandVersion, 99}} {
		if a := m.apply(1, entry); !errors.Is(a.Err, ErrNewerVersion) {
			t.Fatal(a.Err)
		}
	}
	c := goldenCommands["grant"]
	if a := m.apply(2, c.Encode()); !errors.Is(a.Err, ErrNewerVersion) {
		t.Fatal("went on after an entry it could not read")
	}
}

// TestTheSameLogGivesTheSameState: two machines that publish at different
// points, and one that is restored half way, end with the same bytes.
func TestTheSameLogGivesTheSameState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := newMachine(newLessor()), newMachine(newLessor())
		n := rapid.IntRange(1, 60).Draw(t, "entries")
		half := rapid.IntRange(0, n).Draw(t, "half")
		for i := range n {
			var c mvcc.Command
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				c = mvcc.Command{Kind: mvcc.KindLeaseGrant, Lease: genLease.Draw(t, "lease"), TTL: 1000}
			case 1:
				c = mvcc.Command{Kind: mvcc.KindLeaseRevoke, Lease: genLease.Draw(t, "lease")}
			case 2:
				c = mvcc.Command{Kind: mvcc.KindCompact, Revision: rapid.Int64Range(0, 40).Draw(t, "rev")}
			default:
				c = mvcc.Command{Kind: mvcc.KindTxn, Txn: genTxn(t, 0)}
				if c.Txn.Check() != nil {
					continue
				}
			}
			entry := c.Encode()
			x, y := a.apply(uint64(i+1), entry), b.apply(uint64(i+1), entry)
			if (x.Err == nil) != (y.Err == nil) {
				t.Fatal(x.Err, y.Err)
			}
			a.publish()
			if i == half {
				b.publish()
				checkRestored(t, b)
				b = restored(t, b)
			}
		}
		b.publish()
		if x, y := stateBytes(t, a), stateBytes(t, b); !bytes.Equal(x, y) {
			t.Fatalf("states differ:\n%x\n%x", x, y)
		}
	})
}

func stateBytes(t *rapid.T, m *machine) []byte {
	var b bytes.Buffer
	if err := writeSnapshot(&b, m.root.Load()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func restored(t *rapid.T, m *machine) *machine {
	n := newMachine(newLessor())
	if err := n.restore(bytes.NewReader(stateBytes(t, m))); err != nil {
		t.Fatal(err)
	}
	return n
}

func FuzzDecodeCommand(f *testing.F) {
	for _, c := range goldenCommands {
		f.Add(c.Encode())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := mvcc.DecodeCommand(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
				t.Fatal(err)
			}
			return
		}
		again, err := mvcc.DecodeCommand(c.Encode())
		if err != nil {
			t.Fatalf("%+v cannot be read back: %v", c, err)
		}
		c.Raw, again.Raw = 0, 0
		if !reflect.DeepEqual(c, again) {
			t.Fatalf("%+v became %+v", c, again)
		}
		if c.Kind == mvcc.KindTxn && c.Txn.Check() != nil {
			return
		}
		mvcc.NewState().Apply(c)
	})
}

func FuzzReadSnapshot(f *testing.F) {
	var b bytes.Buffer
	if err := writeSnapshot(&b, goldenMachine(f).root.Load()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := readSnapshot(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerVersion) {
				t.Fatal(err)
			}
			return
		}
		var out bytes.Buffer
		if err := writeSnapshot(&out, s.Capture()); err != nil {
			t.Fatal(err)
		}
	})
}
