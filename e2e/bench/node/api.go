package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

// levels are the numbers of concurrent clients.
var levels = []int{1, 16, 64, 256}

const (
	namespaceMany  = "bench-objects" // objects that are created, read and written
	namespaceShort = "bench-short"   // shortList objects to list
	shortList      = 100
)

// operation is one kind of request; every client calls next for each request.
type operation struct {
	name string
	next func(e *load.Encoding, client int) request
}

// serial makes every name and every content unique.
var serial atomic.Int64

func fixedName(client int) string { return "fixed-" + strconv.Itoa(client) }

func objectPath(client int) string {
	return load.ConfigMapsPath(namespaceMany) + "/" + fixedName(client)
}

var operations = []operation{
	{"create", func(e *load.Encoding, _ int) request {
		n := strconv.FormatInt(serial.Add(1), 10)
		return request{http.MethodPost, load.ConfigMapsPath(namespaceMany), e.ConfigMap("new-"+n, n, nil)}
	}},
	{"get", func(_ *load.Encoding, client int) request { return request{http.MethodGet, objectPath(client), nil} }},
	{"update", func(e *load.Encoding, client int) request {
		n := strconv.FormatInt(serial.Add(1), 10)
		return request{http.MethodPut, objectPath(client), e.ConfigMap(fixedName(client), n, nil)}
	}},
	{"list", func(*load.Encoding, int) request {
		return request{http.MethodGet, load.ConfigMapsPath(namespaceShort), nil}
	}},
}

// measureOperation returns the family of one operation: every encoding and every level, the systems in turns.
func measureOperation(op operation) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		if err := b.openClients(ctx); err != nil {
			return err
		}
		for _, e := range encodings {
			for _, level := range levels {
				b.progress("%s, %s, %d clients", op.name, e.Name, level)
				if err := measureCell(ctx, b, op, e, level); err != nil {
					return fmt.Errorf("%s, %s, %d clients: %w", op.name, e.Name, level, err)
				}
			}
		}
		return nil
	}
}

func measureCell(ctx context.Context, b *bench, op operation, e *load.Encoding, level int) error {
	what := op.name
	if op.name == "list" {
		what = fmt.Sprintf("list of %d", shortList)
	}
	prefix := fmt.Sprintf("%s, %s, %d clients: ", what, e.Name, level)
	next := func(client int) request { return op.next(e, client) }
	for range b.rounds {
		for _, s := range b.systems {
			clients := b.clients[s][:level]
			if _, err := window(ctx, s, clients, e, b.window/5, next); err != nil { // warm up: connections are opened, caches are filled
				return err
			}
			o, err := window(ctx, s, clients, e, b.window, next)
			if err != nil {
				return err
			}
			b.table.Add(s.side(), figures.Of(prefix+"rate", "/s", ""), o.Rate())
			b.table.Add(s.side(), figures.Of(prefix+"p50", "ms", ""), figures.Quantile(o.Latencies, 0.5))
			b.table.Add(s.side(), figures.Of(prefix+"p99", "ms", ""), figures.Quantile(o.Latencies, 0.99))
			b.table.Add(s.side(), figures.Of(prefix+"server CPU", "µs each", "ratio 0.333"), o.CPUEach())
		}
	}
	return nil
}

// openClients starts the systems, connects the clients and creates the objects that are read; once for all families.
func (b *bench) openClients(ctx context.Context) error {
	for _, s := range b.systems {
		if err := up(ctx, s); err != nil {
			return err
		}
		if b.clients[s] != nil {
			continue
		}
		cfg, err := s.restConfig()
		if err != nil {
			return err
		}
		clients, err := newClients(cfg, levels[len(levels)-1])
		if err != nil {
			return err
		}
		if err := makeNamespaces(ctx, clients[0], namespaceMany, namespaceShort, namespaceLong, namespaceWatched); err != nil {
			return err
		}
		e := encodings[1]
		create := func(namespace string) func(int) request {
			return func(i int) request {
				return request{http.MethodPost, load.ConfigMapsPath(namespace), e.ConfigMap(fixedName(i), "0", nil)}
			}
		}
		if err := times(ctx, clients, e, len(clients), create(namespaceMany)); err != nil {
			return err
		}
		if err := times(ctx, clients[:1], e, shortList, create(namespaceShort)); err != nil {
			return err
		}
		b.clients[s] = clients
	}
	return nil
}

func makeNamespaces(ctx context.Context, c *client, names ...string) error {
	for _, name := range names {
		body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
		if err := c.do(ctx, encodings[0], request{http.MethodPost, "/api/v1/namespaces", body}); err != nil {
			return err
		}
	}
	return nil
}
