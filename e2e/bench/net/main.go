package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
)

// bench is one run of this program.
type bench struct {
	balsa, alone string // the binaries under measurement
	proxy        string // upstream's kube-proxy; "" without
	rounds       int
	window       time.Duration
	sizes        []int // numbers of Services
	changes      int   // of endpoints, for each size and side

	table figures.Table
	began time.Time
}

// families are in the order in which they run.
var families = []struct {
	name    string
	measure func(context.Context, *bench) error
}{
	{"paths", measurePaths},
	{"service", measureService},
	{"scale", measureScale},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/net:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bench{began: time.Now(), table: figures.Table{Upstream: true, Peer: "peer", Spread: true}}
	var names []string
	for _, f := range families {
		names = append(names, f.name)
	}
	flag.StringVar(&b.balsa, "balsa", "bin/balsa", "the binary whose server is the API")
	flag.StringVar(&b.alone, "alone", "bin/alone", "the network by itself, built from overlay/alone")
	upstream := flag.String("upstream", "", "directory of upstream's kube-proxy: measures it beside; needs nft")
	only := flag.String("only", "", "a regular expression: measure only families whose names match ("+strings.Join(names, ", ")+")")
	flag.IntVar(&b.rounds, "rounds", 5, "windows of load for each figure")
	flag.DurationVar(&b.window, "window", 2*time.Second, "length of a window of load")
	flag.IntVar(&b.changes, "changes", 20, "changes of one endpoint for each number of Services")
	sizes := flag.String("services", "100,1000,10000", "numbers of Services, in rising order")
	quick := flag.Bool("quick", false, "fewer and shorter: a look, not a measurement")
	flag.Parse()
	selected, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if *quick {
		b.rounds, b.window, b.changes, *sizes = 1, time.Second, 4, "100,1000"
	}
	if b.sizes, err = parseSizes(*sizes); err != nil {
		return err
	}
	if *upstream != "" {
		b.proxy = filepath.Join(*upstream, "kube-proxy")
	}
	if err := b.complete(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
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
	return errors.Join(append(faults, b.table.Print(os.Stdout))...)
}

// parseSizes parses the numbers of Services to measure.
func parseSizes(text string) ([]int, error) {
	var out []int
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > 50000 || len(out) > 0 && n <= out[len(out)-1] {
			return nil, fmt.Errorf("-services %s: give rising numbers from 1 to 50000, so that all find an address", text)
		}
		out = append(out, n)
	}
	return out, nil
}

// complete reports every missing program and file at once.
func (b *bench) complete() error {
	var faults []error
	for _, path := range []string{b.balsa, b.alone, b.proxy} {
		if _, err := os.Stat(path); path != "" && err != nil {
			faults = append(faults, fmt.Errorf("%w (make bench-net builds it)", err))
		}
	}
	tools := map[string]string{"iperf3": "iperf3", "ip": "iproute2", "bridge": "iproute2", "ethtool": "ethtool"}
	if b.proxy != "" {
		tools["nft"] = "nftables"
	}
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			faults = append(faults, fmt.Errorf("%s is missing: apt-get install %s", tool, pkg))
		}
	}
	var err error
	for _, path := range []*string{&b.balsa, &b.alone} {
		if *path, err = filepath.Abs(*path); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// header says what was measured, on which machine and under which load.
func (b *bench) header() string {
	return figures.Header(b.balsa, "unknown version", "everything measured", b.began)
}

// progress prints a line for the user.
func (b *bench) progress(format string, args ...any) {
	figures.Progress(b.began, format, args...)
}

// add adds samples of one side to a figure's row.
func (b *bench) add(s figures.Side, name, unit, aim string, samples ...float64) {
	b.table.Add(s, figures.Of(name, unit, aim), samples...)
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// until calls ask again and again, until it returns nil or patience is over.
func until(ctx context.Context, patience time.Duration, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("after %s: %w", patience, err)
		}
		pause(ctx, 20*time.Millisecond)
	}
}
