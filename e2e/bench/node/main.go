package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/e2e/figures"
)

// bench is one run of this program.
type bench struct {
	runs         int           // starts of each kind
	upstreamRuns int           // of upstream, whose starts take long
	rounds       int           // windows of load for each figure
	window       time.Duration // of load
	idle         time.Duration
	systems      []system
	clients      map[system][]*client
	table        figures.Table
	began        time.Time
}

// families are in the order in which they run: idle memory before load.
var families = []struct {
	name    string
	measure func(context.Context, *bench) error
}{
	{"size", measureSize},
	{"start", measureStart},
	{"idle", measureIdle},
	{"pods", measurePods},
	{"create", measureOperation(operations[0])},
	{"get", measureOperation(operations[1])},
	{"update", measureOperation(operations[2])},
	{"list", measureOperation(operations[3])},
	{"long-list", measureLongList},
	{"watch", measureWatch},
	{"memory-after", func(_ context.Context, b *bench) error {
		if len(b.clients) == 0 {
			return nil
		}
		return addMemory(b, "PSS after all this, ")
	}},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/node:", err)
		os.Exit(1)
	}
}

func run() error {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	b := &bench{began: time.Now(), clients: map[system][]*client{}}
	binary := flag.String("balsa", "bin/balsa", "the binary to measure")
	only := flag.String("only", "", "a regular expression: measure only families whose names match ("+familyNames()+")")
	bin := flag.String("upstream", "", "directory of upstream's programs: measures them beside; needs -peers")
	peers := flag.String("peers", "", "directory of upstream-up.sh, which starts upstream's programs")
	flag.IntVar(&b.runs, "runs", 5, "starts of each kind")
	flag.IntVar(&b.upstreamRuns, "upstream-runs", 3, "starts of each kind of upstream")
	flag.IntVar(&b.rounds, "rounds", 3, "windows of load for each figure")
	flag.DurationVar(&b.window, "window", time.Second, "length of a window of load")
	flag.DurationVar(&b.idle, "idle", 3*time.Minute, "how long to leave the cluster alone before looking at what that costs")
	flag.Parse()
	selected, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed to start clusters")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := b.open(*binary, *bin, *peers); err != nil {
		return errors.Join(err, b.close())
	}
	header := b.header()
	var faults []error
	for _, family := range families {
		if !selected.MatchString(family.name) {
			continue
		}
		if err := family.measure(ctx, b); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", family.name, err))
			break
		}
	}
	fmt.Printf("%s\n%s; load average before it ended: %s\n\n", header, time.Since(b.began).Round(time.Second), figures.LoadAverage())
	return errors.Join(append(faults, b.table.Print(os.Stdout), b.close())...)
}

func familyNames() string {
	var names []string
	for _, f := range families {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

func (b *bench) open(binary, bin, peers string) error {
	measured, err := newBalsa(binary)
	if err != nil {
		return err
	}
	b.systems = append(b.systems, measured)
	if (bin == "") != (peers == "") {
		return errors.New("-upstream and -peers go together: the programs, and the script that starts them")
	}
	if bin == "" {
		return nil
	}
	peer, err := newUpstream(peers, bin)
	if err != nil {
		return err
	}
	b.systems = append(b.systems, peer)
	b.table.Upstream = true
	return nil
}

func (b *bench) close() error {
	var faults []error
	for _, s := range b.systems {
		closeClients(b.clients[s])
		faults = append(faults, s.close())
	}
	return errors.Join(faults...)
}

// header says what was measured, on which machine and under which load.
func (b *bench) header() string {
	version := "unknown version"
	if measured, ok := b.systems[0].(*balsa); ok {
		if out, err := exec.Command(measured.binary, "version").Output(); err == nil {
			version = strings.Join(strings.Fields(string(out)), " ")
		}
	}
	return fmt.Sprintf("%s\n%s; %d CPUs, shared by clients and servers; load average when it began: %s",
		version, b.began.Format(time.RFC3339), runtime.NumCPU(), figures.LoadAverage())
}

// progress prints a line for the user.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%5.0fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// suffix marks rows that concern upstream.
func suffix(s system) string {
	if s.side() == figures.Theirs {
		return ", upstream"
	}
	return ""
}

// measureSize measures the files that have to be installed.
func measureSize(_ context.Context, b *bench) error {
	for _, s := range b.systems {
		var sum int64
		for _, path := range s.programs() {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			sum += info.Size()
		}
		b.table.Add(s.side(), figures.Of("size of the binary (upstream: of all)", "MB", ""), float64(sum)/1e6)
	}
	return nil
}
