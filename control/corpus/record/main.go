// Record asks upstream's kube-apiserver what the tests of control/corpus compare a server with, and writes the answers
// to their testdata. It starts etcd and kube-apiserver of the directory it is given, on loopback, and ends them.
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
	"slices"
	"strings"
	"syscall"

	"github.com/balsahq/balsa/control/corpus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	upstream := flag.String("upstream", "", "directory of upstream's etcd and kube-apiserver")
	out := flag.String("out", "control/corpus/testdata", "directory that is written to")
	parts := flag.String("parts", "surface,objects,scenarios,questions", "what is recorded")
	grow := flag.String("grow", ".", "the kinds whose objects are made anew, a regular expression; the others keep those they have")
	compare := flag.String("compare", "", "a server whose scenarios are compared with the recorded ones; nothing is recorded")
	server := flag.String("server", "", "a server that runs already, instead of one that is started; to try things out")
	flag.Parse()
	if *compare != "" {
		if err := against(ctx, *compare, *out, *grow); err != nil {
			fmt.Fprintln(os.Stderr, "record:", err)
			os.Exit(1)
		}
		return
	}
	if *upstream == "" && *server == "" {
		fmt.Fprintln(os.Stderr, "record: -upstream names the directory of etcd and kube-apiserver")
		os.Exit(2)
	}
	if err := record(ctx, options{upstream: *upstream, out: *out, grow: *grow, parts: *parts, server: *server}); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

type options struct{ upstream, out, grow, server, parts string }

func record(ctx context.Context, o options) error {
	server, stop, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	surface, err := corpus.Surface(ctx, server)
	if err != nil {
		return err
	}
	fmt.Printf("%d documents\n", len(surface))
	if strings.Contains(o.parts, "surface") {
		if err := corpus.Save(filepath.Join(o.out, "surface.zst"), surface); err != nil {
			return err
		}
	}
	if err := corpus.Setup(ctx, server); err != nil {
		return err
	}
	if strings.Contains(o.parts, "questions") {
		questions, err := corpus.Questions(ctx, server)
		if err != nil {
			return err
		}
		fmt.Printf("%d questions\n", len(questions.Exchanges))
		if err := corpus.Save(filepath.Join(o.out, "questions.zst"), questions); err != nil {
			return err
		}
	}
	if !strings.Contains(o.parts, "objects") && !strings.Contains(o.parts, "scenarios") {
		return nil
	}
	return o.live(ctx, server)
}

// live records the objects and what is answered when they are led through their lives.
func (o options) live(ctx context.Context, server corpus.Server) error {
	kinds, err := served(ctx, server)
	if err != nil {
		return err
	}
	if !strings.Contains(o.parts, "objects") {
		o.grow = "^$"
	}
	again, err := regexp.Compile(o.grow)
	if err != nil {
		return err
	}
	if err := keep(kinds, again, o.out); err != nil {
		return err
	}
	if strings.Contains(o.parts, "objects") {
		if err := fill(ctx, server, kinds, again); err != nil {
			return err
		}
		if err := corpus.Save(filepath.Join(o.out, "objects.zst"), kinds); err != nil {
			return err
		}
	}
	if !strings.Contains(o.parts, "scenarios") {
		return nil
	}
	return scenarios(ctx, server, kinds, o.out)
}

// keep gives the kinds that are not made anew the objects they have.
func keep(kinds []corpus.Kind, again *regexp.Regexp, out string) error {
	if again.String() == "." {
		return nil
	}
	var old []corpus.Kind
	if err := corpus.Load(filepath.Join(out, "objects.zst"), &old); err != nil {
		return err
	}
	for i, k := range kinds {
		n := slices.IndexFunc(old, func(o corpus.Kind) bool { return o.String() == k.String() })
		switch {
		case again.MatchString(k.String()):
		case n < 0:
			return fmt.Errorf("%s is new and -grow leaves it out", k)
		default:
			kinds[i] = old[n]
		}
	}
	return nil
}

func open(ctx context.Context, o options) (corpus.Server, func(), error) {
	if o.server != "" {
		return corpus.Server{URL: o.server, Client: insecure()}, func() {}, nil
	}
	return start(ctx, o.upstream)
}

// scenarios records what is answered when each object is led through its life.
func scenarios(ctx context.Context, server corpus.Server, kinds []corpus.Kind, out string) error {
	var all []corpus.Scenario
	var faults []error
	exchanges := 0
	for _, k := range kinds {
		scenario, err := corpus.RunScenario(ctx, server, k)
		faults = append(faults, err)
		exchanges += len(scenario.Exchanges)
		all = append(all, scenario)
	}
	fmt.Printf("%d kinds, %d exchanges\n", len(kinds), exchanges)
	return errors.Join(append(faults, corpus.Save(filepath.Join(out, "scenarios.zst"), all))...)
}

// against prints where a server that runs differs from the recording.
func against(ctx context.Context, url, out, only string) error {
	var kinds []corpus.Kind
	var scenarios []corpus.Scenario
	if err := errors.Join(corpus.Load(filepath.Join(out, "objects.zst"), &kinds), corpus.Load(filepath.Join(out, "scenarios.zst"), &scenarios)); err != nil {
		return err
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	server := corpus.Server{URL: url, Client: insecure()}
	var documents []corpus.Document
	if err := corpus.Load(filepath.Join(out, "surface.zst"), &documents); err != nil {
		return err
	}
	here, err := corpus.Surface(ctx, server)
	if err != nil {
		return err
	}
	for _, d := range corpus.Compare(documents, here) {
		fmt.Println(d)
	}
	if err := corpus.Setup(ctx, server); err != nil {
		return err
	}
	var questions corpus.Scenario
	if err := corpus.Load(filepath.Join(out, "questions.zst"), &questions); err != nil {
		return err
	}
	asked, err := corpus.Questions(ctx, server)
	if err != nil {
		return err
	}
	for _, d := range corpus.CompareScenarios(questions, asked) {
		fmt.Println(d)
	}
	for i, k := range kinds {
		if !wanted.MatchString(k.String()) {
			continue
		}
		got, err := corpus.RunScenario(ctx, server, k)
		if err != nil {
			fmt.Println(err)
			continue
		}
		for _, d := range corpus.CompareScenarios(scenarios[i], got) {
			fmt.Println(d)
		}
	}
	return nil
}
