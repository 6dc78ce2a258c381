package main

import (
	"context"
	"time"

	"github.com/balsahq/balsa/e2e/lan"
)

const (
	second = time.Second
	short  = 500 * time.Millisecond
)

var misfortunes = []*misfortune{
	{name: "kill", weight: 4, least: short, most: 3 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		return nil, c.kill(c.leaderOr(ctx))
	}},
	{name: "kill-two", weight: 2, least: short, most: 2 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		if err := c.kill(i); err != nil {
			return nil, err
		}
		return nil, c.kill((i + 1 + c.rng.IntN(c.r.servers-1)) % c.r.servers)
	}},
	{name: "kill-all", weight: 1, alone: true, least: 0, most: second, begin: func(_ context.Context, c *chaos) (func() error, error) {
		for i := range c.r.servers {
			if err := c.kill(i); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}},
	{name: "pause", weight: 4, least: second, most: 8 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		c.tell("pause server %d", i)
		p := c.cluster.Process(i)
		return p.Resume, p.Pause()
	}},
	{name: "cut", weight: 3, least: second, most: 4 * second, begin: func(_ context.Context, c *chaos) (func() error, error) {
		i := c.any()
		j := (i + 1) % c.r.servers
		c.tell("cut %d and %d", i, j)
		return c.cluster.Net.Heal, c.cluster.Net.Cut(c.machine(i), c.machine(j))
	}},
	{name: "cut-one-way", weight: 3, least: second, most: 4 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		inwards := c.rng.IntN(2) == 0
		c.tell("cut the others from server %d, to it %v", i, inwards)
		for j := range c.r.servers {
			from, to := c.machine(i), c.machine(j)
			if inwards {
				from, to = to, from
			}
			if err := c.cluster.Net.CutOneWay(from, to); j != i && err != nil {
				return nil, err
			}
		}
		return c.cluster.Net.Heal, nil
	}},
	{name: "isolate", weight: 4, least: second, most: 5 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		c.tell("isolate server %d", i)
		return c.cluster.Net.Heal, c.cluster.Net.Isolate(c.machine(i))
	}},
	{name: "unplug", weight: 2, least: second, most: 4 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		c.tell("unplug server %d", i)
		return c.cluster.Net.Heal, c.cluster.Net.Unplug(c.machine(i))
	}},
	{name: "slow-link", weight: 2, least: second, most: 4 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		m := c.machine(c.leaderOr(ctx))
		rate := uint64(128<<10) << c.rng.IntN(5) // 128 kbit/s to 2 Mbit/s
		c.tell("link of %s at %d kbit/s", m.Name, rate>>10)
		return func() error { return c.cluster.Net.Slow(m, lan.Link{}) }, c.cluster.Net.Slow(m, lan.Link{BitsPerSecond: rate, Queue: 64 << 10})
	}},
	{name: "full-disk", weight: 2, least: second, most: 4 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		c.tell("fill the disk of server %d", i)
		if c.r.system != "balsa" {
			c.ends(i)
		}
		return c.machine(i).EmptyDisk, c.machine(i).FillDisk()
	}},
	{name: "slow-disk", weight: 2, least: second, most: 5 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		writes := 5 << c.rng.IntN(5) // 5 to 80 a second
		c.tell("disk of server %d at %d writes/s", i, writes)
		return func() error { return c.machine(i).SlowDisk(0) }, c.machine(i).SlowDisk(writes)
	}},
	{name: "clock", weight: 2, least: second, most: 5 * second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		i := c.leaderOr(ctx)
		off := []time.Duration{time.Hour, 10 * time.Minute, -30 * time.Second, -2 * time.Minute}[c.rng.IntN(4)]
		p := c.cluster.Process(i)
		if !p.Running() {
			return nil, nil
		}
		c.tell("clock of server %d off by %s", i, off)
		return func() error {
			if !p.Running() {
				return nil
			}
			return p.ShiftClock(0)
		}, p.ShiftClock(off)
	}},
	{name: "move-leader", weight: 2, least: 0, most: second, begin: func(ctx context.Context, c *chaos) (func() error, error) {
		to := c.any()
		c.tell("move the leadership to server %d", to)
		return nil, c.cluster.MoveLeader(ctx, to)
	}},
	{name: "rolling-restart", weight: 1, alone: true, least: 0, most: short, begin: rollingRestart},
	{name: "replace", weight: 1, alone: true, least: 0, most: second, begin: replace},
}

// kill kills a server as a power cut would.
func (c *chaos) kill(i int) error {
	c.tell("kill server %d", i)
	c.ends(i)
	return c.cluster.Process(i).Kill9()
}

// rollingRestart stops each server as its init system would, and starts it again before the next one.
func rollingRestart(ctx context.Context, c *chaos) (func() error, error) {
	for i := range c.r.servers {
		c.tell("restart server %d", i)
		c.ends(i)
		if err := c.cluster.Process(i).Stop(20 * second); err != nil {
			return nil, err
		}
		if err := c.cluster.Start(ctx, i); err != nil {
			return nil, err
		}
		ready, cancel := context.WithTimeout(ctx, 10*second)
		err := c.cluster.Ready(ready, i)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// replace replaces a server that is gone for good by an empty one.
func replace(_ context.Context, c *chaos) (func() error, error) {
	if c.r.servers < 3 {
		return nil, nil
	}
	i := c.any()
	c.tell("replace server %d", i)
	c.ends(i)
	// The end of the run waits, because half a replacement is no state to check.
	ctx, cancel := context.WithTimeout(context.Background(), 40*second)
	defer cancel()
	_, err := c.cluster.Replace(ctx, i)
	return nil, err
}
