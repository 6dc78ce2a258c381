package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/types"
	"pgregory.net/rapid"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// smallSegments lets a test see many of them.
const smallSegments = 2000

// entry is a log entry whose content follows from index and term.
func entry(index, term uint64) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte(index), byte(term)}, int(20+index*7%90))}
}

func entries(first, n, term uint64) []*raft.Log {
	var logs []*raft.Log
	for i := range n {
		logs = append(logs, entry(first+i, term))
	}
	return logs
}

// crashed copies a log's directory as a process that is killed leaves it.
func crashed(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "wal")
	err := os.CopyFS(to, os.DirFS(dir))
	for errors.Is(err, os.ErrNotExist) { // meta was just being replaced
		err = errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(dir)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestAWALIsWhatWasWritten drives a log and a model of it with appends,
// truncations at both ends, appends that fail half way, kills and restarts.
func TestAWALIsWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := filepath.Join(t.TempDir(), "wal")
		w, err := open(dir, smallSegments, 0)
		if err != nil {
			rt.Fatal(err)
		}
		model := map[uint64]*raft.Log{}
		first, last, term := uint64(1), uint64(0), uint64(1)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"append", "append", "append", "head", "tail", "all", "kill", "close", "fail", "vote"}).Draw(rt, "step") {
			case "append":
				n := rapid.Uint64Range(1, 12).Draw(rt, "n")
				logs := entries(last+1, n, term)
				if err := w.StoreLogs(logs); err != nil {
					rt.Fatal(err)
				}
				for _, l := range logs {
					model[l.Index] = l
				}
				last += n
			case "head":
				if first < last {
					to := rapid.Uint64Range(first, last-1).Draw(rt, "to")
					if err := w.DeleteRange(first, to); err != nil {
						rt.Fatal(err)
					}
					first = to + 1
				}
			case "tail":
				if first < last {
					from := rapid.Uint64Range(first+1, last).Draw(rt, "from")
					if err := w.DeleteRange(from, last); err != nil {
						rt.Fatal(err)
					}
					last, term = from-1, term+1
				}
			case "all":
				if first <= last {
					if err := w.DeleteRange(first, last); err != nil {
						rt.Fatal(err)
					}
					last += rapid.Uint64Range(0, 5).Draw(rt, "gap")
					first = last + 1
				}
			case "fail":
				tearTail(rt, w, last+1, term)
				term++
			case "vote":
				if err := w.Set([]byte("CurrentTerm"), binary.BigEndian.AppendUint64(nil, term)); err != nil {
					rt.Fatal(err)
				}
			case "kill":
				killed := crashed(t, dir)
				w.Close()
				if dir = killed; err != nil {
					rt.Fatal(err)
				}
				if w, err = open(dir, smallSegments, 0); err != nil {
					rt.Fatal(err)
				}
			case "close":
				if err := w.Close(); err != nil {
					rt.Fatal(err)
				}
				if w, err = open(dir, smallSegments, 0); err != nil {
					rt.Fatal(err)
				}
			}
			checkLogIs(rt, w, model, first, last)
		}
		if err := w.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// segmentsOf are the segments that are open; the filer may be making one meanwhile.
func segmentsOf(w *Log) []*segment {
	w.filer.mu.Lock()
	defer w.filer.mu.Unlock()
	return slices.Collect(maps.Keys(w.filer.open))
}

// tearTail writes part of a batch behind the end, as an append does that the
// disk refuses half way.
func tearTail(t *rapid.T, w *Log, next, term uint64) {
	for _, s := range segmentsOf(w) {
		if s.key.id != w.meta.state().tail().ID || s.f == nil || s.end == 0 {
			continue
		}
		n := rapid.Uint64Range(1, 9).Draw(t, "torn")
		var logs []*raft.Log = entries(next, n, term)
		full := encodeBatch(t, s, logs)
		cut := rapid.IntRange(1, len(full)-1).Draw(t, "written")
		for len(bytes.TrimRight(full[cut:], "\x00")) == 0 {
			cut-- // the file has zeros there already: the batch would be whole
		}
		full = full[:cut]
		if _, err := s.f.WriteAt(full, s.end); err != nil {
			t.Fatal(err)
		}
		s.ragged = true
	}
}

func checkLogIs(t *rapid.T, w *Log, model map[uint64]*raft.Log, first, last uint64) {
	gotFirst, _ := w.FirstIndex()
	gotLast, _ := w.LastIndex()
	if first > last {
		if gotFirst != 0 || gotLast != 0 {
			t.Fatalf("empty log goes from %d to %d", gotFirst, gotLast)
		}
		return
	}
	if gotFirst != first || gotLast != last {
		t.Fatalf("log goes from %d to %d, want %d to %d", gotFirst, gotLast, first, last)
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := w.GetLog(i, &l); err != nil {
			t.Fatal(i, err)
		}
		if want := model[i]; l.Term != want.Term || !bytes.Equal(l.Data, want.Data) {
			t.Fatalf("entry %d is %v, want %v", i, l, want)
		}
	}
	var l raft.Log
	if err := w.GetLog(last+1, &l); !errors.Is(err, raft.ErrLogNotFound) {
		t.Fatal(err)
	}
}

// written makes a log of batches of three entries, killed without a mark of its
// end, and returns its one segment's bytes and where each batch ends.
func written(t *testing.T, batches int) (dir, file string, b []byte, ends []int64) {
	t.Helper()
	live := filepath.Join(t.TempDir(), "wal")
	w, err := Open(live, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range uint64(batches) {
		if err := w.StoreLogs(entries(3*i+1, 3, 1)); err != nil {
			t.Fatal(err)
		}
		for _, s := range segmentsOf(w) {
			ends = append(ends, s.end)
		}
	}
	dir = crashed(t, live)
	file = filepath.Join(dir, segmentName(1, 0))
	return dir, file, read(t, file), ends
}

// TestATornAppendIsDropped: whatever part of the last append reached the disk,
// the log opens with what was acknowledged before it, or with all of it.
func TestATornAppendIsDropped(t *testing.T) {
	dir, file, whole, ends := written(t, 4)
	from, to := ends[2], ends[3]
	for at := from; at < to; at += 24 {
		for _, b := range [][]byte{whole[:at], append(bytes.Clone(whole[:at]), make([]byte, 4096)...), hole(whole, at, 16)} {
			write(t, file, b)
			w, err := Open(dir, 0)
			if err != nil {
				t.Fatalf("at %d of %d: %v", at, to, err)
			}
			last, _ := w.LastIndex()
			if last != 9 && !(last == 12 && bytes.Equal(b[:to], whole[:to])) {
				t.Fatalf("at %d: last is %d", at, last)
			}
			// It goes on from there, and nothing of the torn append comes back.
			if err := w.StoreLogs(entries(last+1, 1, 2)); err != nil {
				t.Fatal(err)
			}
			again, err := Open(crashed(t, dir), 0)
			if err != nil {
				t.Fatal(err)
			}
			if n, _ := again.LastIndex(); n != last+1 {
				t.Fatalf("at %d: %d entries, want %d", at, n, last+1)
			}
			again.Close()
			w.Close()
			resetMark(t, dir)
		}
	}
}

// hole returns b with n zeros at an offset.
func hole(b []byte, at int64, n int) []byte {
	b = bytes.Clone(b)
	copy(b[at:], make([]byte, n))
	return b
}

// resetMark forgets how far a log reached.
func resetMark(t *testing.T, dir string) {
	t.Helper()
	m, _, err := openMeta(filepath.Join(dir, metaName))
	if err == nil {
		err = m.update(func(s *segments) { s.Last = 0 })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDamageBeforeTheLastBatchIsSeen: without any mark of where the log ends,
// every changed byte before the last batch is an error, at the latest because
// of the batch that follows.
func TestDamageBeforeTheLastBatchIsSeen(t *testing.T) {
	dir, file, whole, ends := written(t, 4)
	for at := int64(0); at < ends[2]; at += 3 {
		write(t, file, flip(whole, int(at)))
		w, err := Open(dir, 0)
		if err == nil {
			last, _ := w.LastIndex()
			w.Close()
			if last == 12 && inPadding(whole, at) {
				resetMark(t, dir)
				continue
			}
			t.Fatalf("byte %d: opened, last is %d", at, last)
		}
		if !errors.Is(err, errdefs.ErrCorrupt) {
			t.Fatal(err)
		}
	}
}

// inPadding reports whether a byte is one of the zeros that fill up a batch.
func inPadding(b []byte, at int64) bool { return b[at] == 0 && at%8 > 0 }

// TestTheEndOfALogAtRestIsKnown: a second after the last append, a lost tail is
// an error.
func TestTheEndOfALogAtRestIsKnown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	w, err := Open(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.StoreLogs(entries(1, 5, 1)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return w.meta.state().Last == 5 })
	left := crashed(t, dir)
	file := filepath.Join(left, segmentName(1, 0))
	write(t, file, flip(read(t, file), 100))
	if _, err := Open(left, 0); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Fatal(err)
	}
}

func TestAVoteSurvivesInEitherSlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vote")
	s, err := openStable(path, true)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := s.set([]byte("CurrentTerm"), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		again, err := openStable(path, false)
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := again.get([]byte("CurrentTerm")); !ok || string(v) != fmt.Sprint(i) {
			t.Fatalf("%q, want %d", v, i)
		}
		again.close()
	}
	if err := s.set([]byte("k"), make([]byte, slotSize)); !errors.Is(err, errTooLarge) {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

// encodeBatch is the batch that s would write for logs.
func encodeBatch(t *rapid.T, s *segment, logs []*raft.Log) []byte {
	var codec raftwal.BinaryCodec
	var list []types.LogEntry
	for _, l := range logs {
		var b bytes.Buffer
		if err := codec.Encode(l, &b); err != nil {
			t.Fatal(err)
		}
		list = append(list, types.LogEntry{Index: l.Index, Data: b.Bytes()})
	}
	return s.key.appendBatch(nil, s.chain, list, func(int) {})
}

// TestASegmentIsMadeOfAnOldOne: old segments are used again, what they held
// stays unseen, and a kill at any time leaves the log whole.
func TestASegmentIsMadeOfAnOldOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	w, err := open(dir, smallSegments, 0)
	if err != nil {
		t.Fatal(err)
	}
	last, reused := uint64(0), 0
	for round := range uint64(30) {
		if err := w.StoreLogs(entries(last+1, 15, round)); err != nil {
			t.Fatal(err)
		}
		last += 15
		if last > 40 {
			if err := w.DeleteRange(1, last-40); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, func() bool {
			w.filer.mu.Lock()
			defer w.filer.mu.Unlock()
			if w.filer.sweeping || w.filer.sparing {
				return false
			}
			if w.filer.spare {
				reused++
			}
			return true
		})
		again, err := open(crashed(t, dir), smallSegments, 0)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if n, _ := again.LastIndex(); n != last {
			t.Fatalf("round %d: ends at %d, want %d", round, n, last)
		}
		var l raft.Log
		if err := again.GetLog(last, &l); err != nil || l.Term != round {
			t.Fatal(l, err)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if reused == 0 {
		t.Fatal("there never was a spare segment")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	b[i] ^= 1
	return b
}

// eventually waits for something that other goroutines bring about.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("did not come about within a minute")
		}
		<-time.After(5 * time.Millisecond)
	}
}
