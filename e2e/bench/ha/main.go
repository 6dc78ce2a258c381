package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/quorum"
)

const servers = 3

// bench is one run of this program.
type bench struct {
	runs   int           // failovers
	rounds int           // windows of load for each figure
	window time.Duration // of load
	steady time.Duration
	quick  bool
	tool   string // etcd's benchmark program; "" without upstream
	balsa  string
	etcd   string // "" without upstream

	systems []*system
	table   figures.Table
	began   time.Time
}

// system is one of the two measured systems.
type system struct {
	*quorum.Cluster
	side figures.Side
	name string
}

// families are in the order in which they run.
var families = []struct {
	name    string
	measure func(context.Context, *bench) error
}{
	{"put", measurePut},
	{"range", measureRange},
	{"watch", measureWatch},
	{"txn", measureTxn},
	{"lease", measureLease},
	{"memory", measureMemory},
	{"failover", measureFailover},
	{"controllers", measureControllers},
	{"steady", measureSteady},
	{"scale", measureScale},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/ha:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bench{began: time.Now()}
	var names []string
	for _, f := range families {
		names = append(names, f.name)
	}
	flag.StringVar(&b.balsa, "balsa", "bin/balsa", "the binary to measure; \"\" for none")
	upstream := flag.String("upstream", "", "directory of upstream's etcd and etcd-benchmark: measures etcd beside; the families of load need it")
	only := flag.String("only", "", "a regular expression: measure only families whose names match ("+strings.Join(names, ", ")+")")
	flag.IntVar(&b.runs, "runs", 20, "failovers")
	flag.IntVar(&b.rounds, "rounds", 3, "windows of load for each figure")
	flag.DurationVar(&b.window, "window", 4*time.Second, "length of a window of load")
	flag.DurationVar(&b.steady, "steady", 5*time.Minute, "how long the machine is overloaded to see whether anybody is elected")
	flag.BoolVar(&b.quick, "quick", false, "fewer and shorter: a look, not a measurement")
	flag.Parse()
	selected, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if b.quick {
		b.runs, b.rounds, b.window, b.steady = min(b.runs, 3), 1, time.Second, min(b.steady, 20*time.Second)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := b.open(ctx, *upstream); err != nil {
		return errors.Join(err, b.close())
	}
	header := b.header()
	var faults []error
	for _, family := range families {
		if !selected.MatchString(family.name) || ctx.Err() != nil {
			continue
		}
		if err := family.measure(ctx, b); err != nil { // the other families still run
			faults = append(faults, fmt.Errorf("%s: %w", family.name, err))
		}
	}
	fmt.Printf("%s\n%s; load average before it ended: %s\n\n", header, time.Since(b.began).Round(time.Second), figures.LoadAverage())
	return errors.Join(append(faults, b.table.Print(os.Stdout), b.close())...)
}

// open forms the clusters.
func (b *bench) open(ctx context.Context, upstream string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if upstream != "" {
		b.etcd, b.tool = filepath.Join(upstream, "etcd"), filepath.Join(upstream, "etcd-benchmark")
		b.table.Upstream, b.table.Spread = true, true
	}
	for i, name := range []string{"balsa", "etcd"} {
		cfg := b.config(name)
		if cfg.Binary == "" {
			continue
		}
		b.progress("three servers of %s", name)
		c, err := quorum.New(cfg)
		if err != nil {
			return err
		}
		b.systems = append(b.systems, &system{c, figures.Side(i), name})
		if err := c.Form(ctx); err != nil {
			return err
		}
	}
	return nil
}

// config describes a cluster of one of the systems; flags are for etcd only.
func (b *bench) config(name string, flags ...string) quorum.Config {
	if name == "etcd" {
		return quorum.Config{System: name, Binary: b.etcd, Servers: servers, Flags: flags}
	}
	return quorum.Config{System: name, Binary: b.balsa, Servers: servers}
}

func (b *bench) close() error {
	var faults []error
	for _, s := range b.systems {
		faults = append(faults, s.Close())
	}
	return errors.Join(faults...)
}

// header says what was measured, on which machine and under which load.
func (b *bench) header() string {
	return figures.Header(b.balsa, "unknown version", "clients and servers", b.began)
}

// progress prints a line for the user.
func (b *bench) progress(format string, args ...any) {
	figures.Progress(b.began, format, args...)
}

// add adds samples to a figure's row.
func (b *bench) add(s *system, name, unit, aim string, samples ...float64) {
	b.table.Add(s.side, figures.Of(name, unit, aim), samples...)
}

// pids returns the system's server processes.
func (s *system) pids() []int {
	var out []int
	for i := range s.Size() {
		if s.Running(i) {
			out = append(out, s.Process(i).PID)
		}
	}
	return out
}

// measureMemory measures the servers' memory after the families of load.
func measureMemory(_ context.Context, b *bench) error {
	for _, s := range b.systems {
		mib, err := figures.PSS(s.pids())
		if err != nil {
			return err
		}
		b.add(s, "memory of all servers after this, PSS", "MiB", "", mib)
	}
	return nil
}
