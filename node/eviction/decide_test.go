package eviction

import (
	"fmt"
	"testing"
	"time"
)

// round is one observation and what has to follow.
type round struct {
	at         time.Duration
	left       map[Signal]int64 // of 1000
	conditions string
	starved    Signal
}

func config(t *testing.T, f Flags) Config {
	t.Helper()
	c, err := f.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDecisionsOverTime(t *testing.T) {
	const memory, disk, images = MemoryAvailable, NodeFsAvailable, ImageFsAvailable
	hard := func(texts ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(texts); i += 2 {
			m[texts[i]] = texts[i+1]
		}
		return m
	}
	for name, c := range map[string]struct {
		flags  Flags
		rounds []round
	}{
		"nothing is short": {Flags{Hard: hard("memory.available", "100")}, []round{{0, map[Signal]int64{memory: 100}, "[]", ""}}},
		"not observed":     {Flags{Hard: hard("memory.available", "100")}, []round{{0, nil, "[]", ""}}},
		"hard, at once, and the condition stays": {Flags{Hard: hard("memory.available", "100"), TransitionPeriod: time.Minute}, []round{
			{0, map[Signal]int64{memory: 99}, "[MemoryPressure]", memory},
			{10 * time.Second, map[Signal]int64{memory: 99}, "[MemoryPressure]", memory},
			{20 * time.Second, map[Signal]int64{memory: 100}, "[MemoryPressure]", ""},
			{69 * time.Second, map[Signal]int64{memory: 200}, "[MemoryPressure]", ""},
			{70 * time.Second, map[Signal]int64{memory: 200}, "[]", ""},
		}},
		"no transition period": {Flags{Hard: hard("memory.available", "100")}, []round{
			{0, map[Signal]int64{memory: 99}, "[MemoryPressure]", memory},
			{time.Second, map[Signal]int64{memory: 100}, "[]", ""},
		}},
		"soft, after its grace period": {Flags{Soft: hard("memory.available", "100"), SoftGrace: hard("memory.available", "30s")}, []round{
			{0, map[Signal]int64{memory: 99}, "[MemoryPressure]", ""},
			{29 * time.Second, map[Signal]int64{memory: 99}, "[MemoryPressure]", ""},
			{30 * time.Second, map[Signal]int64{memory: 99}, "[MemoryPressure]", memory},
		}},
		"soft, with a pause in between": {Flags{Soft: hard("memory.available", "100"), SoftGrace: hard("memory.available", "30s")}, []round{
			{0, map[Signal]int64{memory: 99}, "[MemoryPressure]", ""},
			{20 * time.Second, map[Signal]int64{memory: 100}, "[]", ""},
			{40 * time.Second, map[Signal]int64{memory: 99}, "[MemoryPressure]", ""},
		}},
		"goes on until the minimum is reclaimed": {Flags{Hard: hard("memory.available", "100"), MinimumReclaim: hard("memory.available", "50")}, []round{
			{0, map[Signal]int64{memory: 120}, "[]", ""},
			{1 * time.Second, map[Signal]int64{memory: 99}, "[MemoryPressure]", memory},
			{2 * time.Second, map[Signal]int64{memory: 149}, "[MemoryPressure]", memory},
			{3 * time.Second, map[Signal]int64{memory: 150}, "[]", ""},
			{4 * time.Second, map[Signal]int64{memory: 120}, "[]", ""},
		}},
		"an observation is acted on once": {Flags{Hard: hard("memory.available", "100")}, []round{
			{0, map[Signal]int64{memory: 99}, "[MemoryPressure]", memory},
			{0, map[Signal]int64{memory: 99}, "[MemoryPressure]", ""},
		}},
		"memory before disk": {Flags{Hard: hard("memory.available", "100", "nodefs.available", "10%", "imagefs.available", "15%")}, []round{
			{0, map[Signal]int64{memory: 99, disk: 99, images: 149}, "[MemoryPressure DiskPressure]", memory},
			{1 * time.Second, map[Signal]int64{memory: 100, disk: 99, images: 149}, "[DiskPressure]", disk},
			{2 * time.Second, map[Signal]int64{memory: 100, disk: 100, images: 149}, "[DiskPressure]", images},
		}},
		"the pods' own limit": {Flags{Hard: hard("memory.available", "100")}, []round{
			{0, map[Signal]int64{memory: 900, AllocatableMemoryAvailable: 99}, "[MemoryPressure]", AllocatableMemoryAvailable},
		}},
		"processes": {Flags{Hard: hard("pid.available", "10%")}, []round{{0, map[Signal]int64{PIDAvailable: 99}, "[PIDPressure]", PIDAvailable}}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, begin, state := config(t, c.flags), time.Unix(1000, 0), State{}
			for _, r := range c.rounds {
				seen := Observations{}
				for s, n := range r.left {
					seen[s] = Observation{Available: n, Capacity: 1000, At: begin.Add(r.at)}
				}
				var d Decision
				d, state = Decide(cfg, state, seen, begin.Add(r.at))
				var starved Signal
				if d.Starved != nil {
					starved = d.Starved.Signal
				}
				if got := fmt.Sprint(d.Conditions); got != r.conditions || starved != r.starved {
					t.Errorf("after %s: %s, starved of %q; want %s, %q", r.at, got, starved, r.conditions, r.starved)
				}
			}
		})
	}
}

func TestWhatIsReclaimedBeforeAPod(t *testing.T) {
	for name, c := range map[string]struct {
		signal   Signal
		separate bool
		want     string
	}{
		"memory":             {MemoryAvailable, false, "[]"},
		"processes":          {PIDAvailable, false, "[]"},
		"disk":               {NodeFsAvailable, false, "[dead containers and their logs unused images]"},
		"inodes of images":   {ImageFsInodesFree, true, "[dead containers and their logs unused images]"},
		"disk beside images": {NodeFsInodesFree, true, "[dead containers and their logs]"},
	} {
		if got := fmt.Sprint(NodeLevel(Threshold{Signal: c.signal}, c.separate)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestHowFarMemoryMayGrowUntilTheNextThreshold(t *testing.T) {
	c := config(t, Flags{Hard: map[string]string{"memory.available": "100"}, Soft: map[string]string{"memory.available": "20%"}, SoftGrace: map[string]string{"memory.available": "1m"}})
	for left, want := range map[int64]int64{300: 100, 200: 0, 199: 99, 100: 0, 99: -1} {
		got, ok := c.Distance(MemoryAvailable, Observations{MemoryAvailable: {Available: left, Capacity: 1000}})
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%d left: %d, want %d", left, got, want)
		}
	}
}
