package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

type options struct {
	balsa   string
	only    *regexp.Regexp
	span    time.Duration
	objects int
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "badapi:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	o := options{}
	flag.StringVar(&o.balsa, "balsa", "bin/balsa", "the binary under test")
	only := flag.String("only", ".", "a regular expression: only bombs whose names match")
	flag.DurationVar(&o.span, "span", 5*time.Second, "how long each bomb, and the quiet before it, lasts")
	flag.IntVar(&o.objects, "objects", 10_000, "how many objects there are to be listed")
	flag.Parse()
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	t, err := newTarget(ctx, o.balsa)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.fill(ctx, o.objects); err != nil {
		return err
	}
	fmt.Printf("%-40s | %-52s | %s\n", "", "the other client", "memory of the server, MiB: before, most, after; what the one was answered")
	for _, b := range append(append(bodyBombs(), costBombs()...), wireBombs()...) {
		if ctx.Err() != nil || !o.only.MatchString(b.name) {
			continue
		}
		if err := measure(ctx, t, &b, o.span); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return ctx.Err()
}

// measure prints the other client's latencies without and with a bomb.
func measure(ctx context.Context, t *target, b *bomb, span time.Duration) error {
	other := t.client(good)
	defer other.CloseIdleConnections()
	watch := func(attack func(context.Context)) *observer {
		ctx, cancel := context.WithTimeout(ctx, span)
		defer cancel()
		attacked := make(chan struct{})
		go func() { defer close(attacked); attack(ctx) }()
		o := watchOver(ctx, t, other, b.anew)
		<-attacked
		return o
	}
	quiet := watch(func(context.Context) {})
	before, _ := t.memory()
	if err := t.forget(); err != nil {
		return err
	}
	count := newTally(1 << 30)
	under := watch(func(ctx context.Context) { b.attack(ctx, t, count) })
	after, most := t.memory()
	fmt.Printf("%-40s | %s | quiet\n%-40s | %s | %4d %5d %5d; %s\n", b.name, quiet, "", under, before>>20, most>>20, after>>20, count)
	for _, err := range under.faults[:min(3, len(under.faults))] {
		fmt.Printf("%-40s | %d failed: %v\n", "", len(under.faults), err)
	}
	return t.alive()
}

// fill creates the objects: the one that the other client uses, one with long lists, and n objects to be listed.
func (t *target) fill(ctx context.Context, n int) error {
	c := t.client(good)
	defer c.CloseIdleConnections()
	create := func(path, body string) error {
		code, err := t.send(ctx, c, shot{method: http.MethodPost, path: path, kind: jsonKind, body: []byte(body)})
		if err == nil && code != http.StatusCreated {
			err = fmt.Errorf("POST %s: %d", path, code)
		}
		return err
	}
	if err := create(maps1, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"victim"},"data":{"k":"v"}}`); err != nil {
		return err
	}
	env := series(1_000, `{"name":"O%d","value":"x"}`)
	if err := create(deployments, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"large"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"x","env":[`+env+`]}]}}}}`); err != nil {
		return err
	}
	data := strings.Repeat("x", 1000)
	for i := range n {
		if err := create(maps1, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"o%d","labels":{"a":"b"}},"data":{"k":%q}}`, i, data)); err != nil {
			return err
		}
	}
	return nil
}
