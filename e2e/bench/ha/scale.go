package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/quorum"
)

// The size of a large store: 2 GiB of values.
const (
	scaleKeys  = 1_000_000
	scaleValue = 2147 // bytes
)

// scaleFigures are the metrics of the store's own benchmark, by their units.
var scaleFigures = map[string]figures.Figure{
	"heap-B/key":        figures.Of("scale: memory a key, beside its value", "B", ""),
	"snapshot-s":        figures.Of("scale: snapshot", "s", ""),
	"quiet-stall-ms":    figures.Of("scale: longest write, otherwise quiet", "ms", ""),
	"snapshot-stall-ms": figures.Of("scale: longest write during the snapshot", "ms", "20"),
	"after-stall-ms":    figures.Of("scale: longest write after it", "ms", "20"),
	"restart-s":         figures.Of("scale: restart", "s", ""),
}

func (b *bench) scaleKeys() int {
	if b.quick {
		return scaleKeys / 50
	}
	return scaleKeys
}

// measureScale runs the store's own benchmark of a large state, adds its figures to the table, and lets a new member
// catch up with such a state.
func measureScale(ctx context.Context, b *bench) error {
	if b.balsa == "" {
		return nil
	}
	b.progress("scale: the store's own benchmark, %d keys", b.scaleKeys())
	raw, err := exec.CommandContext(ctx, "go", "test", "-run=^$", "-bench=^BenchmarkScale$", "-benchtime=1x", "-count=1", "-timeout=40m",
		"./raftstore", "-args", fmt.Sprintf("-scale-keys=%d", b.scaleKeys()), fmt.Sprintf("-scale-value=%d", scaleValue)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, raw[max(0, len(raw)-2000):])
	}
	found := parseMetrics(string(raw))
	if len(found) == 0 {
		return fmt.Errorf("the store's benchmark printed no figure:\n%s", raw[max(0, len(raw)-2000):])
	}
	for unit, value := range found {
		if f, ok := scaleFigures[unit]; ok {
			b.table.Add(figures.Ours, f, value)
		}
	}
	return b.catchUp(ctx)
}

// parseMetrics parses a benchmark's line: pairs of a value and its unit.
func parseMetrics(text string) map[string]float64 {
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(line, "Benchmark") || len(fields) < 4 {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				out[fields[i+1]] = v
			}
		}
	}
	return out
}

// catchUp makes a cluster of each system, fills it and replaces a server.
func (b *bench) catchUp(ctx context.Context) error {
	if b.tool == "" {
		b.progress("scale: catching up is left out, it needs etcd's benchmark program (-upstream)")
		return nil
	}
	var faults []error
	for _, s := range b.systems {
		b.progress("scale: a new server of %s catches up", s.name)
		faults = append(faults, b.catchUpOf(ctx, s))
	}
	return errors.Join(faults...)
}

func (b *bench) catchUpOf(ctx context.Context, like *system) (err error) {
	c, err := quorum.New(b.config(like.name, "--quota-backend-bytes=8589934592"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	if err := c.Form(ctx); err != nil {
		return err
	}
	s := &system{c, like.side, like.name}
	keys := b.scaleKeys()
	if _, _, err := b.tooled(ctx, s, 256, "put", "--sequential-keys", "--key-size=16", fmt.Sprintf("--key-space-size=%d", keys),
		fmt.Sprintf("--total=%d", keys), fmt.Sprintf("--val-size=%d", scaleValue)); err != nil {
		return err
	}
	took, err := c.Replace(ctx, 1)
	if err != nil {
		return err
	}
	b.add(s, fmt.Sprintf("scale: a new server has caught up, %d keys, %d MiB", keys, keys*scaleValue>>20), "s", "", took.Seconds())
	return nil
}
