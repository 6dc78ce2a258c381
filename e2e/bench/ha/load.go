package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
)

// load is one row of cells: the arguments of etcd's benchmark program.
type load struct {
	name    string
	args    []string
	clients int
	prepare []string // run once before, on each system
	aim     string   // for the rate
	// latency: the program's latencies are meaningful. Those of its watch command measure something else.
	latency bool
}

const (
	keys      = 10_000
	leastReqs = 200
	toolTime  = 15 * time.Minute // limit of one call of the benchmark program
)

// connections returns how many connections the clients share.
func connections(clients int) int { return min(clients, 100) }

func measurePut(ctx context.Context, b *bench) error {
	var list []load
	for _, size := range []int{256, 4096} {
		for _, clients := range []int{1, 64, 256, 1000} {
			aim := "ratio 2"
			if clients == 1 {
				aim = "ratio 1"
			}
			list = append(list, load{
				name: fmt.Sprintf("put, %d B, %d clients", size, clients), clients: clients, aim: aim, latency: true,
				args: []string{"put", "--key-size=16", fmt.Sprintf("--val-size=%d", size), fmt.Sprintf("--key-space-size=%d", keys)},
			})
		}
	}
	return b.measure(ctx, list)
}

func measureRange(ctx context.Context, b *bench) error {
	var list []load
	for _, consistency := range []string{"linearizable", "serializable"} {
		for _, clients := range []int{1, 64, 1000} {
			list = append(list, load{
				name: fmt.Sprintf("range, %s, %d clients", consistency, clients), clients: clients, aim: "ratio 1", latency: true,
				args: []string{"range", "foo", "--consistency=" + consistency[:1]},
			})
		}
	}
	return b.measure(ctx, list)
}

func measureTxn(ctx context.Context, b *bench) error {
	return b.measure(ctx, []load{{
		name: "txn-mixed, 64 clients", clients: 64, aim: "ratio 1", latency: true,
		args: []string{"txn-mixed", "foo", "--key-size=16", "--val-size=256", fmt.Sprintf("--key-space-size=%d", keys), "--limit=10"},
	}})
}

func measureLease(ctx context.Context, b *bench) error {
	return b.measure(ctx, []load{{name: "lease keep-alive, 64 clients", clients: 64, aim: "ratio 1", latency: true, args: []string{"lease-keepalive"}}})
}

// measureWatch lets 1,000 watchers see one key's changes, and measures the latency of an event separately.
func measureWatch(ctx context.Context, b *bench) error {
	return b.each(ctx, "watch", func(s *system) error {
		puts := 200
		if b.quick {
			puts = 50
		}
		out, cpu, err := b.tooled(ctx, s, 1, "watch", "--streams=10", "--watch-per-stream=100", "--watched-key-total=1", "--put-rate=1000", fmt.Sprintf("--put-total=%d", puts))
		if err != nil {
			return err
		}
		b.add(s, "watch, 1,000 watchers of a key: events", "/s", "ratio 1", out[len(out)-1].rate)
		b.add(s, "watch, 1,000 watchers of a key: server CPU", "s a 1,000 events", "", cpu.Seconds()*1000/float64(puts*1000))
		out, _, err = b.tooled(ctx, s, 1, "watch-latency", "--put-rate=100", fmt.Sprintf("--put-total=%d", puts), "--val-size=256")
		if err != nil {
			return err
		}
		last := out[len(out)-1]
		b.add(s, "watch, put to event: p50", "ms", "", last.p50)
		b.add(s, "watch, put to event: p99", "ms", "ratio 0.5", last.p99)
		return nil
	})
}

// each does something with every system, in turns.
func (b *bench) each(ctx context.Context, what string, do func(*system) error) error {
	if b.tool == "" {
		b.progress("%s: left out, it needs etcd's benchmark program (-upstream)", what)
		return nil
	}
	var faults []error
	for round := range b.rounds {
		for _, s := range b.systems {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.progress("%s, %s, round %d", what, s.name, round+1)
			if err := do(s); err != nil {
				faults = append(faults, fmt.Errorf("%s, %s: %w", what, s.name, err))
			}
		}
	}
	return errors.Join(faults...)
}

// measure runs each load for about a window. The number of requests is what the system answers in that time.
func (b *bench) measure(ctx context.Context, list []load) error {
	var faults []error
	for _, l := range list {
		total := map[*system]int{}
		faults = append(faults, b.each(ctx, l.name, func(s *system) error {
			if total[s] == 0 { // warm up: connections are opened, caches are filled
				out, _, err := b.tooled(ctx, s, l.clients, append(l.args, fmt.Sprintf("--total=%d", max(leastReqs, 2*l.clients)))...)
				if err != nil {
					return err
				}
				total[s] = max(leastReqs, 4*l.clients, int(sum(out)*b.window.Seconds()))
			}
			out, cpu, err := b.tooled(ctx, s, l.clients, append(l.args, fmt.Sprintf("--total=%d", total[s]))...)
			if err != nil {
				return err
			}
			b.add(s, l.name+": rate", "/s", l.aim, sum(out))
			if l.latency {
				worst := out[0]
				for _, o := range out {
					worst.p50, worst.p99 = max(worst.p50, o.p50), max(worst.p99, o.p99)
				}
				b.add(s, l.name+": p50", "ms", "", worst.p50)
				b.add(s, l.name+": p99", "ms", "ratio 0.5", worst.p99)
			}
			b.add(s, l.name+": server CPU", "s a 1,000", "", cpu.Seconds()*1000/float64(total[s]))
			return nil
		}))
	}
	return errors.Join(faults...)
}

// outcome is one summary of the benchmark program: requests a second, and latencies in milliseconds.
type outcome struct{ rate, p50, p99 float64 }

func sum(list []outcome) float64 {
	total := 0.0
	for _, o := range list {
		total += o.rate
	}
	return total
}

// tooled runs the benchmark program on the client's machine against the leader. It returns the program's summaries and
// the servers' CPU time.
func (b *bench) tooled(ctx context.Context, s *system, clients int, args ...string) ([]outcome, time.Duration, error) {
	files, err := s.Credentials()
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	args = append(args, "--endpoints="+strings.Join(s.Endpoints(), ","), "--target-leader", "--precise",
		fmt.Sprintf("--clients=%d", clients), fmt.Sprintf("--conns=%d", connections(clients)),
		"--cacert="+files.CA, "--cert="+files.Cert, "--key="+files.Key)
	cpu := figures.CPUTime(s.pids())
	raw, err := s.Net.Client.Command(ctx, b.tool, args...).CombinedOutput()
	cpu = figures.CPUTime(s.pids()) - cpu
	text := string(raw)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w: %s", args[0], err, text[max(0, len(text)-500):])
	}
	out, err := parseOutcomes(text)
	return out, cpu, err
}

var (
	rateLine     = regexp.MustCompile(`Requests/sec:\s+([0-9.e+]+)`)
	quantileLine = regexp.MustCompile(`(50|99)% in ([0-9.e+-]+) secs`)
	errorLine    = regexp.MustCompile(`(?s)Error distribution:.*`)
)

// parseOutcomes parses the output of the benchmark program, which has one outcome for each kind of request.
func parseOutcomes(text string) ([]outcome, error) {
	if at := errorLine.FindString(text); at != "" {
		return nil, fmt.Errorf("requests failed: %s", at[:min(len(at), 500)])
	}
	var out []outcome
	for _, section := range strings.Split(text, "Summary:")[1:] {
		var o outcome
		rate := rateLine.FindStringSubmatch(section)
		if rate == nil {
			return nil, fmt.Errorf("no rate in %q", section)
		}
		o.rate, _ = strconv.ParseFloat(rate[1], 64)
		for _, q := range quantileLine.FindAllStringSubmatch(section, -1) {
			seconds, err := strconv.ParseFloat(q[2], 64)
			if err != nil {
				return nil, err
			}
			if q[1] == "50" {
				o.p50 = seconds * 1e3
			} else {
				o.p99 = seconds * 1e3
			}
		}
		out = append(out, o)
	}
	if len(out) == 0 {
		return nil, errors.New("the benchmark program printed no summary")
	}
	return out, nil
}
