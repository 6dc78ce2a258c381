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
)

// bench is one run of this program.
type bench struct {
	balsa    string
	upstream string // directory of kube-apiserver and etcd; "" without
	rounds   int
	window   time.Duration
	idle     time.Duration // without requests before memory is measured
	quick    bool
	profiles string // directory for CPU profiles of Balsa; "" for none

	systems []*system
	loaded  bool // since the systems were started
	table   figures.Table
	began   time.Time
}

// families are in the order in which they run.
var families = []struct {
	name    string
	fresh   bool // needs clusters that have done nothing yet
	measure func(context.Context, *bench) error
}{
	{"idle", true, measureIdle},
	{"create", false, measureOperation(create)},
	{"update", false, measureOperation(update)},
	{"pair", false, measureOperation(getAndPut)},
	{"get", false, measureOperation(get)},
	{"apply", false, measureOperation(apply)},
	{"custom", false, measureCustom},
	{"list", false, measureLists},
	{"pods", false, measurePods},
	{"watch", false, measureWatch(watchersShared)},
	{"watch-each", false, measureWatch(1)},
	{"watch-list", false, measureWatchList},
	{"memory-loaded", false, measureLoaded},
	{"memory-after", true, measureChurn},
	{"definitions", true, measureDefinitions},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/api:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	b := &bench{began: time.Now()}
	var names []string
	for _, f := range families {
		names = append(names, f.name)
	}
	flag.StringVar(&b.balsa, "balsa", "bin/balsa", "the binary to measure; \"\" measures upstream alone")
	flag.StringVar(&b.upstream, "upstream", "", "directory of upstream's kube-apiserver and etcd: measures them beside")
	flag.StringVar(&b.profiles, "profiles", "", "directory for CPU profiles of ours, one for each figure; profiling costs a little")
	only := flag.String("only", "", "a regular expression: measure only families whose names match ("+strings.Join(names, ", ")+")")
	flag.IntVar(&b.rounds, "rounds", 3, "windows of load for each figure")
	flag.DurationVar(&b.window, "window", time.Second, "length of a window of load")
	flag.DurationVar(&b.idle, "idle", 30*time.Second, "how long a cluster is left alone before its memory is looked at")
	flag.BoolVar(&b.quick, "quick", false, "fewer and shorter: a look, not a measurement")
	flag.Parse()
	selected, err := regexp.Compile("^(?:" + *only + ")$")
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if *only == "" {
		selected = regexp.MustCompile("")
	}
	if b.quick {
		b.rounds, b.window, b.idle = 1, 500*time.Millisecond, 10*time.Second
	}
	if err := b.complete(); err != nil {
		return err
	}
	b.table.Upstream = b.upstream != ""
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	header := b.header()
	var faults []error
	for _, family := range families {
		if !selected.MatchString(family.name) || ctx.Err() != nil {
			continue
		}
		if err := b.measure(ctx, family.fresh, family.measure); err != nil { // the other families still run
			faults = append(faults, fmt.Errorf("%s: %w", family.name, err))
		}
	}
	fmt.Printf("%s\n%s; load average before it ended: %s\n\n", header, time.Since(b.began).Round(time.Second), figures.LoadAverage())
	return errors.Join(append(faults, b.table.Print(os.Stdout), b.close())...)
}

// measure runs a family, on new clusters if it needs them.
func (b *bench) measure(ctx context.Context, fresh bool, family func(context.Context, *bench) error) error {
	if fresh && b.loaded {
		if err := b.close(); err != nil {
			return err
		}
	}
	if len(b.systems) == 0 {
		if err := b.start(ctx); err != nil {
			return errors.Join(err, b.close())
		}
	}
	err := family(ctx, b)
	if err != nil {
		for _, s := range b.systems {
			err = errors.Join(err, s.alive())
		}
	}
	return err
}

// start starts new clusters.
func (b *bench) start(ctx context.Context) error {
	b.loaded = false
	makers := []func() (*system, error){}
	if b.balsa != "" {
		makers = append(makers, func() (*system, error) { return newBalsa(b.balsa, b.profiles != "") })
	}
	if b.upstream != "" {
		makers = append(makers, func() (*system, error) { return newUpstream(b.upstream) })
	}
	for _, make := range makers {
		s, err := make()
		if s != nil {
			b.systems = append(b.systems, s)
		}
		if err != nil {
			return err
		}
		b.progress("starting %s", s.name)
		if err := s.start(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (b *bench) close() error {
	var faults []error
	for _, s := range b.systems {
		faults = append(faults, s.close())
	}
	b.systems = nil
	return errors.Join(faults...)
}

// complete reports every missing flag and file at once.
func (b *bench) complete() error {
	var faults []error
	var files []string
	if b.balsa != "" {
		files = append(files, b.balsa)
	}
	if b.upstream != "" {
		files = append(files, filepath.Join(b.upstream, "kube-apiserver"), filepath.Join(b.upstream, "etcd"))
	}
	for _, path := range files {
		if _, err := os.Stat(path); err != nil {
			faults = append(faults, err)
		}
	}
	if len(files) == 0 {
		faults = append(faults, errors.New("there is nothing to measure: give -balsa or -upstream"))
	}
	if os.Geteuid() != 0 {
		faults = append(faults, errors.New("root is needed to make network namespaces"))
	}
	if b.profiles != "" {
		faults = append(faults, os.MkdirAll(b.profiles, 0o755))
	}
	if b.rounds < 1 || b.window <= 0 || b.idle <= 0 {
		faults = append(faults, errors.New("-rounds, -window and -idle must be more than 0"))
	}
	return errors.Join(faults...)
}

// header says what was measured, on which machine and under which load.
func (b *bench) header() string {
	return figures.Header(b.balsa, "upstream alone", "clients and servers", b.began)
}

// progress prints a line for the user.
func (b *bench) progress(format string, args ...any) {
	figures.Progress(b.began, format, args...)
}

// add adds samples to a figure's row.
func (b *bench) add(s *system, name, unit, aim string, samples ...float64) {
	b.table.Add(s.side, figures.Of(name, unit, aim), samples...)
}

// The project's aims, as ratios to upstream.
const (
	aimRate   = "ratio 2"
	aimP99    = "ratio 0.5"
	aimCPU    = "ratio 0.333"
	aimMemory = "ratio 0.333"
)

// turns returns the systems; every other round starts with the second one.
func (b *bench) turns(round int) []*system {
	out := append([]*system(nil), b.systems...)
	if round%2 == 1 && len(out) == 2 {
		out[0], out[1] = out[1], out[0]
	}
	return out
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
