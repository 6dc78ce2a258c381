package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	system, binary, out, faults string
	servers                     []int
	flags                       []string
	runs, parallel, clients     int
	duration, limit             time.Duration
	seed                        uint64
	verbose, keep               bool
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("linear", flag.ContinueOnError)
	f.StringVar(&o.system, "system", "balsa", "what is tried: balsa or etcd")
	f.StringVar(&o.binary, "bin", "", "its program (default: bin/balsa, or etcd from $PATH)")
	servers := f.String("servers", "3", "how many servers; several numbers, as 3,5, take turns")
	f.IntVar(&o.runs, "runs", 1, "how many runs, each with a seed of its own")
	f.IntVar(&o.parallel, "parallel", 1, "how many of them at the same time")
	f.IntVar(&o.clients, "clients", 8, "clients a run")
	f.DurationVar(&o.duration, "duration", 30*time.Second, "length of a run, without start and judgement")
	f.DurationVar(&o.limit, "limit", 30*time.Second, "how long an order of the operations of one part is searched")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().Unix()), "of the first run; the next has the next")
	f.StringVar(&o.faults, "faults", "", "only these, separated by commas; \"none\" for none (default: all)")
	f.StringVar(&o.out, "out", filepath.Join(os.TempDir(), "balsa-linear"), "directory for what failed")
	flags := f.String("flags", "", "further flags of the servers, separated by spaces")
	f.BoolVar(&o.keep, "keep", false, "keep history and logs of every run, not only of those that failed")
	f.BoolVar(&o.verbose, "v", false, "tell each fault when it happens")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.flags = strings.Fields(*flags)
	for text := range strings.SplitSeq(*servers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-servers %q: give numbers from 1 on", *servers)
		}
		o.servers = append(o.servers, n)
	}
	if o.binary == "" {
		o.binary = map[string]string{"balsa": "bin/balsa", "etcd": "/usr/bin/etcd"}[o.system]
	}
	_, err := chosen(o.faults)
	return o, err
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "linear:", err)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if failed := runAll(ctx, o); failed > 0 || ctx.Err() != nil {
		cancel()
		os.Exit(1)
	}
}

// runAll executes the runs and prints the outcome of each; it returns how many failed.
func runAll(ctx context.Context, o *options) int {
	seeds := make(chan int)
	var mu sync.Mutex
	failed, done, began := 0, 0, time.Now()
	var workers sync.WaitGroup
	for range o.parallel {
		workers.Go(func() {
			for i := range seeds {
				r := &run{options: o, seed: o.seed + uint64(i), servers: o.servers[i%len(o.servers)]}
				err := r.do(ctx)
				mu.Lock()
				if errors.Is(err, context.Canceled) {
					mu.Unlock()
					continue
				}
				done++
				fmt.Println(r.summary(err))
				if err != nil {
					failed++
				}
				mu.Unlock()
			}
		})
	}
	for i := range o.runs {
		select {
		case seeds <- i:
		case <-ctx.Done():
		}
	}
	close(seeds)
	workers.Wait()
	fmt.Printf("%s: %d runs of %s, %d failed, in %s\n", o.system, done, o.duration, failed, time.Since(began).Round(time.Second))
	return failed
}
