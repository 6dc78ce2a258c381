package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/balsahq/balsa/e2e/host"
)

// options are the flags.
type options struct {
	balsa, upstream, images, out string
	driver                       string   // "" or a file
	cases                        []string // full names
	focus                        string   // a regular expression, if there are no names
	nodes, procs                 int
	limit                        time.Duration
	flags                        []string
	dual                         bool
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run() error {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c, err := newCluster(ctx, o)
	if err != nil {
		return err
	}
	err = c.judge(ctx)
	return errors.Join(err, c.close())
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.StringVar(&o.balsa, "balsa", "bin/balsa", "the binary under test")
	f.StringVar(&o.upstream, "upstream", "", "directory of upstream's e2e.test, ginkgo and kubectl")
	f.StringVar(&o.images, "images", "", "directory of archives of the images that the cases name")
	f.StringVar(&o.out, "out", filepath.Join(os.TempDir(), "balsa-conformance"), "directory for logs and reports")
	f.StringVar(&o.driver, "driver", "", "file that defines a storage driver of the cluster, for upstream's \"External Storage\" cases")
	cases := f.String("cases", "", "file with one full name of a case a line; \"\": all that upstream has")
	only := f.String("only", ".", "a regular expression: only cases whose names match")
	flags := f.String("flags", "", "further flags of all nodes, separated by spaces")
	f.BoolVar(&o.dual, "dual-stack", false, "make hosts, pods and Services of both address families")
	f.IntVar(&o.nodes, "nodes", 2, "how many hosts; the first is the server")
	f.IntVar(&o.procs, "procs", 2, "how many cases at once; those that want to be alone run afterwards, one by one")
	f.DurationVar(&o.limit, "limit", time.Hour, "how long all cases may take")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.flags = strings.Fields(*flags)
	var faults []error
	if o.nodes < 1 || o.nodes > 16 {
		faults = append(faults, fmt.Errorf("-nodes %d: from 1 to 16", o.nodes))
	}
	files := []string{o.balsa, filepath.Join(o.upstream, "e2e.test"), filepath.Join(o.upstream, "ginkgo"), filepath.Join(o.upstream, "kubectl"), o.images}
	if o.driver != "" {
		files = append(files, o.driver)
	}
	for _, path := range files {
		if _, err := os.Stat(path); err != nil {
			faults = append(faults, err)
		}
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return nil, errors.Join(append(faults, fmt.Errorf("-only: %w", err))...)
	}
	if *cases == "" {
		o.focus = *only
	} else if o.cases, err = readCases(*cases, wanted); err != nil {
		faults = append(faults, fmt.Errorf("-cases: %w", err))
	}
	for _, path := range []*string{&o.balsa, &o.upstream, &o.images, &o.out, &o.driver} {
		if *path != "" {
			*path, err = filepath.Abs(*path)
			faults = append(faults, err)
		}
	}
	return o, errors.Join(append(faults, os.MkdirAll(o.out, 0o755))...)
}

func readCases(path string, wanted *regexp.Regexp) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name := strings.TrimSpace(lines.Text()); name != "" && wanted.MatchString(name) {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s names no case that is wanted", path)
	}
	return out, nil
}

// wantsToBeAlone reports whether a case must not run beside others.
func wantsToBeAlone(name string) bool {
	return strings.Contains(name, "[Serial]") || strings.Contains(name, "[Disruptive]")
}

// judge runs the cases and lists those that did not pass: first the cases that may run beside others, then the rest.
func (c *cluster) judge(ctx context.Context) error {
	const apart = `\[(Serial|Disruptive)\]`
	if c.o.focus != "" {
		return errors.Join(
			c.ginkgo(ctx, "parallel", c.o.procs, "--focus="+c.o.focus, "--skip="+apart),
			c.ginkgo(ctx, "serial", 1, "--focus=("+c.o.focus+").*"+apart))
	}
	var together, alone []string
	for _, name := range c.o.cases {
		focus := "--focus=" + regexp.QuoteMeta(name) + "$"
		if wantsToBeAlone(name) {
			alone = append(alone, focus)
		} else {
			together = append(together, focus)
		}
	}
	return errors.Join(c.ginkgo(ctx, "parallel", c.o.procs, together...), c.ginkgo(ctx, "serial", 1, alone...))
}

// ginkgo runs cases, if there are any, from the clients' machine. Its report goes to a file.
func (c *cluster) ginkgo(ctx context.Context, name string, procs int, which ...string) error {
	if len(which) == 0 {
		return nil
	}
	report := filepath.Join(c.o.out, name+".log")
	log, err := os.Create(report)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Printf("%s: %d at once; see %s\n", name, procs, report)
	args := append([]string{"--procs=" + strconv.Itoa(procs), "--no-color", "--timeout=" + c.o.limit.String()}, which...)
	args = append(args, filepath.Join(c.o.upstream, "e2e.test"), "--", "-kubeconfig", c.kubeconfig, "-provider=skeleton", "-kubelet-root-dir", host.KubeletDir,
		"-kubectl-path", filepath.Join(c.o.upstream, "kubectl"), "-report-dir", c.o.out, "-report-prefix", name+"-", "-non-blocking-taints", "", "-disable-log-dump")
	if c.o.driver != "" {
		args = append(args, "-storage.testdriver="+c.o.driver)
	}
	cmd := c.net.Client.Command(ctx, filepath.Join(c.o.upstream, "ginkgo"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	ran := cmd.Run()
	raw, err := os.ReadFile(report)
	if err != nil {
		return err
	}
	summary, failed := read(string(raw))
	fmt.Println(strings.Join(append(summary, failed...), "\n"))
	if ran != nil && len(failed) == 0 {
		return fmt.Errorf("%s: %w: see %s", name, ran, report)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d cases did not pass: see %s", len(failed), report)
	}
	return nil
}

var (
	summaryLine = regexp.MustCompile(`^(Ran \d+ of|(SUCCESS|FAIL)!|.* Passed \| )`)
	failureLine = regexp.MustCompile(`^\s*\[(FAIL|TIMEDOUT|INTERRUPTED|PANICKED)\]`)
)

// read returns the end of a report.
func read(report string) (summary, failed []string) {
	for line := range strings.Lines(report) {
		line = strings.TrimSpace(line)
		switch {
		case summaryLine.MatchString(line):
			summary = append(summary, line)
		case failureLine.MatchString(line) && !slices.Contains(failed, line):
			failed = append(failed, line)
		}
	}
	return summary, failed
}
