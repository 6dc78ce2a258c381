package member

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// real is a member on loopback.
type real struct {
	*Gossip
	stop func() error
	logs *lockedBuffer
}

func startReal(t *testing.T, cfg Config, seeds ...string) *real {
	t.Helper()
	logs := &lockedBuffer{}
	cfg.BindAddr, cfg.Seeds = "127.0.0.1", func() []string { return seeds }
	if cfg.BindPort == 0 {
		cfg.BindPort = -1
	}
	if cfg.Keys == nil {
		cfg.Keys = [][]byte{testKey(1)}
	}
	cfg.Logger = slog.New(slog.NewTextHandler(logs, nil))
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, result := make(chan struct{}), error(nil)
	go func() { defer close(done); result = g.Run(ctx) }()
	r := &real{g, func() error { cancel(); <-done; return result }, logs}
	t.Cleanup(func() { _ = r.stop() })
	select {
	case <-g.Ready():
	case <-done:
		t.Fatal(result)
	}
	return r
}

// eventually waits for a condition of the real world.
func eventually(t *testing.T, limit time.Duration, what string, cond func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-tick.C
	}
	return time.Since(start)
}

func states(g *real) string {
	var out []string
	for _, m := range g.Members() {
		out = append(out, m.Name+"="+string(m.State))
	}
	return strings.Join(out, " ")
}

func TestFiveMembersOnLoopback(t *testing.T) {
	all := fiveReal(t)
	const whole = "s1=alive s2=alive s3=alive s4=alive s5=alive"
	every := func(gs []*real, want string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(gs, func(g *real) bool { return states(g) != want })
		}
	}
	eventually(t, time.Minute, "all see all", every(all, whole))

	addr := all[4].Addr()
	if err := all[4].stop(); err != nil { // its sockets close, without a word
		t.Error(err)
	}
	t.Logf("failed everywhere after %v", eventually(t, time.Minute, "s5 failed", every(all[:4], "s1=alive s2=alive s3=alive s4=alive s5=failed")))

	moved := startReal(t, Config{Name: "s5", Meta: serverMeta(5)}, all[2].Addr())
	if moved.Addr() == addr {
		t.Log("the same port was free again")
	}
	eventually(t, time.Minute, "s5 back at another address", every(append(all[:4:4], moved), whole))

	if err := all[3].Leave(2 * time.Second); err != nil {
		t.Error(err)
	}
	eventually(t, time.Minute, "s4 left", every(append(all[:3:3], moved), "s1=alive s2=alive s3=alive s4=left s5=alive"))
}

func TestTheSecondOfOneNameOnLoopback(t *testing.T) {
	first := startReal(t, Config{Name: "a", Meta: serverMeta(1)})
	other := startReal(t, Config{Name: "b", Meta: serverMeta(2)}, first.Addr())
	eventually(t, time.Minute, "two", func() bool { return states(first) == "a=alive b=alive" })
	timing := DefaultTiming()
	timing.SuspicionMax = 1 // a shorter dispute
	twin, err := New(Config{Name: "a", Meta: serverMeta(3), BindAddr: "127.0.0.1", BindPort: -1, Keys: [][]byte{testKey(1)}, Timing: timing,
		Seeds: func() []string { return []string{other.Addr()} }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := twin.Run(ctx); !errors.Is(err, ErrNameTaken) {
		t.Errorf("ended with %v", err)
	}
	if states(first) != "a=alive b=alive" || first.Members()[0].ServerID != serverID(1) {
		t.Errorf("the first sees %s", states(first))
	}
}

func TestStrangersStayOutside(t *testing.T) {
	in := startReal(t, Config{Name: "in", Meta: serverMeta(1)})
	foreign := serverMeta(2)
	foreign.ClusterID = strings.Repeat("f", 32)
	mixed := serverMeta(3)
	for what, cfg := range map[string]Config{
		"wrong key":       {Name: "x", Meta: mixed, Keys: [][]byte{testKey(9)}},
		"another cluster": {Name: "y", Meta: foreign},
	} {
		t.Run(what, func(t *testing.T) {
			out := startReal(t, cfg, in.Addr())
			eventually(t, time.Minute, "a word about it", func() bool { return strings.Contains(in.logs.String(), "127.0.0.1") })
			time2 := time.NewTimer(2 * time.Second) // several attempts more
			defer time2.Stop()
			<-time2.C
			if states(in) != "in=alive" || len(out.Members()) != 1 {
				t.Errorf("in sees %s, out sees %s", states(in), states(out))
			}
		})
	}
	if n := strings.Count(in.logs.String(), "level=WARN"); n > 4 {
		t.Errorf("%d warnings:\n%s", n, in.logs.String())
	}
	if strings.Contains(in.logs.String(), string(testKey(1))) {
		t.Error("a key is in the log")
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// peakHeap runs do and returns the largest heap meanwhile.
func peakHeap(do func()) (peak uint64) {
	over := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	})
	do()
	close(over)
	watcher.Wait()
	return peak
}

var testLabel = append([]byte{labelMagic, 32}, testCluster...)

func floodPackets(t *testing.T, addr string) {
	udp, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	junk := make([]byte, 1300)
	kinds := [][]byte{junk, append(slices.Clone(testLabel), junk...), testLabel, {labelMagic, 255, 'x'}}
	for i := range 30_000 {
		_, _ = udp.Write(kinds[i%len(kinds)]) // a full queue refuses
	}
}

// floodStreams opens streams that claim 16 MB and bring it, and as many that
// bring nothing.
func floodStreams(addr string) {
	var writers sync.WaitGroup
	junk := make([]byte, 64<<10)
	head := binary.BigEndian.AppendUint32(append(slices.Clone(testLabel), 10), 16<<20) // 10 is memberlist's encryptMsg
	for i := range 200 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			continue
		}
		defer c.Close()
		if i%2 == 0 {
			continue
		}
		writers.Go(func() {
			_ = c.SetDeadline(time.Now().Add(3 * time.Second))
			_, err := c.Write(head)
			for err == nil {
				_, err = c.Write(junk)
			}
		})
	}
	writers.Wait()
}

func TestAFloodFromOutsideIsBounded(t *testing.T) {
	in := startReal(t, Config{Name: "in", Meta: serverMeta(1)})
	friend := startReal(t, Config{Name: "friend", Meta: serverMeta(2)}, in.Addr())
	eventually(t, time.Minute, "two", func() bool { return states(in) == "friend=alive in=alive" })
	before := heap()
	peak := peakHeap(func() {
		floodPackets(t, in.Addr())
		floodStreams(in.Addr())
	})
	t.Logf("heap %d KiB before, %d KiB at most", before>>10, peak>>10)
	if peak > before+64<<20 {
		t.Errorf("heap grew by %d MiB", (peak-before)>>20)
	}
	eventually(t, time.Minute, "the two still know each other", func() bool {
		return states(in) == "friend=alive in=alive" && states(friend) == "friend=alive in=alive"
	})
	if n := strings.Count(in.logs.String(), "level=WARN"); n > 12 {
		t.Errorf("%d warnings:\n%s", n, in.logs.String())
	}
}

func TestStreamsAreCountedAndCut(t *testing.T) {
	w, err := newWire(logger{slog.New(slog.DiscardHandler), newLimiter()}, testCluster, "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Shutdown()
	addr := fmt.Sprint("127.0.0.1:", w.port())
	var taken []net.Conn
	for range maxStreamsOfOne {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		taken = append(taken, <-w.streams)
	}
	extra, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	_ = extra.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := extra.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("one stream more from one address: %v", err)
	}
	_ = taken[0].Close()
	big, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	in := <-w.streams
	go func() {
		for err := error(nil); err == nil; {
			_, err = big.Write(make([]byte, 64<<10))
		}
	}()
	n, err := io.Copy(io.Discard, in)
	if !errors.Is(err, errStreamTooLong) || n > maxStreamBytes {
		t.Errorf("took %d bytes of one stream: %v", n, err)
	}
	_ = in.Close()
	if held := w.held.Load(); held != 0 {
		t.Errorf("%d bytes are held by nobody", held)
	}
}
