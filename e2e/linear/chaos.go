package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balsahq/balsa/e2e/lan"
	"github.com/balsahq/balsa/e2e/quorum"
)

// misfortune is one kind of fault. It starts at once and lasts until its heal function is called. chaos starts
// processes again that have ended.
type misfortune struct {
	name   string
	weight int
	// alone: no other fault happens at the same time.
	alone bool
	least time.Duration // shortest duration
	most  time.Duration // longest duration
	begin func(ctx context.Context, c *chaos) (heal func() error, err error)
}

// chaos causes faults according to a seed.
type chaos struct {
	r       *run
	cluster *quorum.Cluster
	rng     *rand.Rand

	mu      sync.Mutex
	lines   []string
	counted map[string]int
	expect  map[int]bool // servers that may end by themselves, because their disk is full
	logged  []int        // bytes of each log that were searched
}

func newChaos(r *run) *chaos {
	return &chaos{r: r, cluster: r.cluster, rng: rand.New(rand.NewPCG(r.seed, 1<<33)), counted: map[string]int{}, expect: map[int]bool{}, logged: make([]int, r.servers)}
}

func (c *chaos) tell(format string, args ...any) {
	line := fmt.Sprintf("%6.2f s  ", float64(c.r.now())/1e9) + fmt.Sprintf(format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, line)
	if c.r.verbose {
		fmt.Printf("seed %d %s\n", c.r.seed, line)
	}
}

func (c *chaos) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// names returns the faults that happened, with their counts.
func (c *chaos) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for name, n := range c.counted {
		if n > 1 {
			name = fmt.Sprintf("%s×%d", name, n)
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// chosen returns the misfortunes with these names.
func chosen(names string) ([]*misfortune, error) {
	if names == "" {
		return misfortunes, nil
	}
	if names == "none" {
		return nil, nil
	}
	var out []*misfortune
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(misfortunes, func(m *misfortune) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no fault is called %q", name)
		}
		out = append(out, misfortunes[i])
	}
	return out, nil
}

// run causes and heals faults until ctx ends. At the end all are healed.
func (c *chaos) run(ctx context.Context) error {
	list, err := chosen(c.r.faults)
	if err != nil {
		return err
	}
	quorum.Pause(ctx, time.Second)
	for ctx.Err() == nil && len(list) > 0 {
		if err := c.once(ctx, list); err != nil {
			return err
		}
		quorum.Pause(ctx, time.Duration(300+c.rng.IntN(1500))*time.Millisecond)
	}
	<-ctx.Done()
	return c.repair()
}

// once causes one fault, sometimes two.
func (c *chaos) once(ctx context.Context, list []*misfortune) error {
	first := c.draw(list)
	happening := []*misfortune{first}
	if !first.alone && c.rng.IntN(3) == 0 {
		if second := c.draw(list); !second.alone && second != first {
			happening = append(happening, second)
		}
	}
	lasts := first.least + time.Duration(c.rng.Int64N(int64(first.most-first.least+1)))
	var heals []func() error
	for _, m := range happening {
		c.mu.Lock()
		c.counted[m.name]++
		c.mu.Unlock()
		heal, err := m.begin(ctx, c)
		if err != nil {
			if ctx.Err() == nil {
				c.tell("%s: %v", m.name, err)
			}
			continue // for example, there is no leader to isolate
		}
		if heal != nil {
			heals = append(heals, heal)
		}
	}
	quorum.Pause(ctx, lasts)
	for _, heal := range heals {
		if err := heal(); err != nil {
			return err
		}
	}
	c.tell("healed")
	return c.repair()
}

func (c *chaos) draw(list []*misfortune) *misfortune {
	sum := 0
	for _, m := range list {
		sum += m.weight
	}
	n := c.rng.IntN(sum)
	for _, m := range list {
		if n -= m.weight; n < 0 {
			return m
		}
	}
	panic("unreachable")
}

// repair starts servers that do not run, and reports those that ended without reason.
func (c *chaos) repair() error {
	var faults []error
	for i := range c.r.servers {
		faults = append(faults, c.search(i))
		if c.cluster.Running(i) {
			continue
		}
		if c.r.system == "balsa" && !c.mayEnd(i) {
			faults = append(faults, fmt.Errorf("server %d ended by itself:\n%s", i, c.cluster.Tail(i)))
		}
		c.tell("start server %d", i)
		// The end of the run does not end the repair.
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		faults = append(faults, c.cluster.Start(ctx, i))
		cancel()
	}
	c.mu.Lock()
	clear(c.expect)
	c.mu.Unlock()
	return errors.Join(faults...)
}

func (c *chaos) mayEnd(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expect[i]
}

// ends notes that server i does not run, or may end, because of a fault.
func (c *chaos) ends(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expect[i] = true
}

// search looks for a crash in the new part of server i's log.
func (c *chaos) search(i int) error {
	raw, err := os.ReadFile(c.cluster.Log(i))
	if err != nil || len(raw) < c.logged[i] {
		return err
	}
	fresh := string(raw[c.logged[i]:])
	c.logged[i] = len(raw)
	if c.r.system != "balsa" {
		return nil
	}
	for _, mark := range []string{"\npanic: ", "\nfatal error: ", "WARNING: DATA RACE"} {
		if at := strings.Index("\n"+fresh, mark); at >= 0 {
			return fmt.Errorf("server %d crashed: %s", i, fresh[at:min(len(fresh), at+2000)])
		}
	}
	return nil
}

func (c *chaos) any() int { return c.rng.IntN(c.r.servers) }

func (c *chaos) machine(i int) *lan.Machine { return c.cluster.Net.Machines[i] }

// leaderOr returns the leader, or sometimes another server.
func (c *chaos) leaderOr(ctx context.Context) int {
	chance := c.any()
	if c.rng.IntN(3) == 0 {
		return chance
	}
	if leader, err := c.cluster.Leader(ctx); err == nil {
		return leader
	}
	return chance
}
