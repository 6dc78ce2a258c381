package raftstore_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	simSeeds   = flag.Int("sim-seeds", 150, "how many seeds the simulation runs")
	simFirst   = flag.Uint64("sim-first", 1, "the first of them")
	simServers = flag.Int("sim-servers", 0, "servers in the cluster, 0 for what the seed says, 3 or 5")
	simTrace   = flag.String("sim-trace", "", "a file that gets the trace of the newest seed as it grows, for those that end in a panic")
	simLog     bool
)

func init() {
	flag.BoolVar(&simLog, "sim-log", false, "what the stores log goes into the trace, which is printed in any case")
}

// TestSimulatedClusters runs whole clusters in fake time: 3 or 5 stores (and in
// some seeds one that joins), each on a disk in memory, on a network in memory.
//
//	sim_cluster_test.go  servers, their runs, what is recorded of them
//	sim_plan_test.go     what a seed decides: the network, the faults and when
//	sim_client_test.go   clients that read and write, and may get no answer
//	sim_actors_test.go   watchers, holders of leases, leaders under a fence
//	sim_history_test.go  what all of them saw
//	sim_check_test.go    what must be true of it; sim_linear_test.go: porcupine
//	sim_disk_test.go     the disk that crashes, tears, fills up and slows down
//	sim_seeds_test.go, sim_found_test.go  what was found, kept
//
// The plan follows from the seed; how goroutines are scheduled does not, so a
// seed that failed may take some tries to fail again. All of it:
//
//	go test ./raftstore -run TestSimulatedClusters -sim-seeds 10000
//
// One seed, with what the stores log: -sim-first N -sim-seeds 1 -sim-log.
func TestSimulatedClusters(t *testing.T) {
	began := time.Now()
	stats := simStats{}
	for i := range *simSeeds {
		seed := *simFirst + uint64(i)
		if !simulate(t, seed, *simServers, &stats) {
			t.Fatalf("seed %d failed; again: go test ./raftstore -run TestSimulatedClusters -sim-first %d -sim-seeds 1 -sim-servers %d", seed, seed, *simServers)
		}
		if n := i + 1; n%500 == 0 {
			fmt.Printf("%d seeds, %v each, %v\n", n, (time.Since(began) / time.Duration(n)).Round(time.Millisecond), stats)
		}
	}
	t.Logf("%d seeds, %v each, %v", *simSeeds, (time.Since(began) / time.Duration(max(*simSeeds, 1))).Round(time.Millisecond), stats)
}

// simStats says what the runs consisted of, so that a run in which nothing
// happens is seen.
type simStats struct {
	ops, known, reads, revisions, faults, leaders int
	fake                                          time.Duration
}

func (s simStats) String() string {
	return fmt.Sprintf("%d operations (%d answered, %d reads), %d revisions, %d faults, %d leaders, %v of fake time",
		s.ops, s.known, s.reads, s.revisions, s.faults, s.leaders, s.fake.Round(time.Second))
}

// simulate runs one seed and reports whether all was well.
func simulate(t *testing.T, seed uint64, servers int, stats *simStats) (ok bool) {
	rng := rand.New(rand.NewPCG(seed, 0))
	if servers == 0 {
		servers = 3 + 2*rng.IntN(2)
	}
	tr := traitsOf(rng, servers)
	plan := planOf(rng, tr)
	h := newHistory()
	if *simTrace != "" {
		f, err := os.Create(*simTrace)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		h.out = f
	}
	hung := time.AfterFunc(time.Minute, func() { abort(seed, h) })
	defer hung.Stop()
	defer func() {
		if p := recover(); p != nil {
			dump(t, seed, h, []string{fmt.Sprint("panic: ", p)})
		}
	}()
	synctest.Test(t, func(t *testing.T) { live(seed, tr, plan, h) })
	faults := judge(h)
	stats.add(h, plan)
	if len(faults) > 0 || simLog && *simSeeds == 1 {
		dump(t, seed, h, faults)
	}
	return len(faults) == 0
}

// live is one run, inside the bubble.
func live(seed uint64, tr traits, plan []fault, h *history) {
	h.start = time.Now()
	w := newWorld(seed, tr, h)
	for n := range tr.clients {
		w.zombies.Go(w.client(n).work)
	}
	w.zombies.Go(w.client(10).watch)
	w.zombies.Go(w.client(11).watch)
	w.zombies.Go(w.client(20).lease)
	w.zombies.Go(w.client(21).lease)
	w.play(plan)
	if d := tr.horizon - w.h.now(); d > 0 {
		time.Sleep(d)
	}
	time.Sleep(1300 * time.Millisecond) // the last faults end
	w.finish()
}

// finish heals, checks that the cluster works, and ends everything.
func (w *world) finish() {
	w.net.Heal()
	time.Sleep(time.Second)
	w.stop()
	w.settle()
	for _, s := range w.servers {
		if r := w.runOf(s); r != nil {
			r.end()
		}
	}
	ended := make(chan struct{})
	go func() {
		w.zombies.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		w.h.failf("something does not end")
		abort(w.seed, w.h)
	}
	w.net.Close()
	w.h.took = w.h.now()
}

// abort ends the program where a run cannot be ended: goroutines of it that
// hang would hang the next ones.
func abort(seed uint64, h *history) {
	b := make([]byte, 8<<20)
	fmt.Printf("seed %d hangs\n%s\n", seed, b[:runtime.Stack(b, true)])
	fmt.Println(strings.Join(h.lines, "\n"))
	os.Exit(2)
}

func (s *simStats) add(h *history, plan []fault) {
	s.ops += len(h.ops)
	for _, op := range h.ops {
		if op.known {
			s.known++
		}
		if op.read {
			s.reads++
		}
	}
	s.revisions += int(h.newest)
	s.faults += len(plan)
	s.leaders += len(h.leaders)
	s.fake += h.took
}

// dump prints the trace of a run that failed.
func dump(t *testing.T, seed uint64, h *history, faults []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", seed)
	h.mu.Lock()
	b.WriteString(strings.Join(h.lines, "\n"))
	h.mu.Unlock()
	for _, f := range faults {
		fmt.Fprintf(&b, "\nFAULT %s", f)
	}
	if len(faults) > 0 {
		t.Error(b.String())
	} else {
		t.Log(b.String())
	}
}
