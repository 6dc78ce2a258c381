package raftstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// crashChildDir makes the test binary the victim of the crash test.
const (
	crashChildDir = "RAFTSTORE_CRASH_CHILD"
	crashChildLog = "RAFTSTORE_CRASH_LOG"
)

// crashWriters write in the victim at once. Each has a key of its own and
// writes 1, 2, 3… to it, so one number says what must be found again.
const crashWriters = 8

// crashChild writes and prints "writer number" after each acknowledgement, as
// fast as it can, until it is killed.
func crashChild(dir string) {
	s, err := Open(Config{Dir: dir, LogKind: raftlog.Kind(os.Getenv(crashChildLog)), SnapshotEntries: 200, HistoryAge: 50 * time.Millisecond})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	go s.Run(context.Background())
	var out sync.Mutex
	var wg sync.WaitGroup
	for w := range crashWriters {
		wg.Go(func() {
			key := crashKey(w)
			n := int64(0)
			if kv := s.View().Get(key); kv != nil {
				n, _ = strconv.ParseInt(string(kv.Value), 10, 64)
			}
			for {
				n++
				_, err := s.Txn(context.Background(), mvcc.Txn{Success: []mvcc.Op{{Type: mvcc.OpPut, Key: key, Value: []byte(strconv.FormatInt(n, 10))}}})
				if err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				out.Lock()
				fmt.Println(w, n)
				out.Unlock()
			}
		})
	}
	wg.Wait()
}

func crashKey(w int) string { return fmt.Sprintf("/writer/%d", w) }

func TestEveryAcknowledgedWriteSurvivesKill9(t *testing.T) {
	everyLog(t, func(t *testing.T, store raftlog.Kind) {
		rounds := 12
		if n, err := strconv.Atoi(os.Getenv("RAFTSTORE_CRASH_ROUNDS")); err == nil {
			rounds = n
		}
		dir := t.TempDir()
		acked := make([]int64, crashWriters)
		for round := range rounds {
			crashOnce(t, dir, store, acked)
			s, err := Open(Config{Dir: dir, LogKind: store})
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			for w, want := range acked {
				var got int64
				if kv := s.View().Get(crashKey(w)); kv != nil {
					got, _ = strconv.ParseInt(string(kv.Value), 10, 64)
					if kv.Version != got {
						t.Errorf("round %d: writer %d wrote %d, version is %d", round, w, got, kv.Version)
					}
				}
				// One more may be there: written, killed before it was printed.
				if got < want || got > want+1 {
					t.Errorf("round %d: writer %d acknowledged %d, found %d", round, w, want, got)
				}
				acked[w] = got
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d rounds, acknowledged %v", rounds, acked)
	})
}

// crashOnce runs a victim, kills it at a random moment and notes what it said.
func crashOnce(t *testing.T, dir string, store raftlog.Kind, acked []int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashChildDir+"="+dir, crashChildLog+"="+string(store))
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(pipe)
	var killer *time.Timer
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF || err != nil {
			break // a line without its end was not said
		}
		if msg, bad := strings.CutPrefix(line, "error "); bad {
			t.Errorf("victim: %s", msg)
			break
		}
		var w int
		var n int64
		if _, err := fmt.Sscan(line, &w, &n); err != nil {
			t.Fatalf("victim said %q", line)
		}
		acked[w] = max(acked[w], n)
		if killer == nil {
			// From the first write on, somewhere within 400 ms.
			killer = time.AfterFunc(time.Duration(rand.Int64N(int64(400*time.Millisecond))), func() { cmd.Process.Kill() })
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
}
