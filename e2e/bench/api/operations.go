package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

// levels are the numbers of concurrent clients.
var levels = []int{1, 16, 64, 256}

const namespaceObjects = "bench-objects"

// serial makes every name and every content unique.
var serial atomic.Int64

func stamp() string { return fmt.Sprintf("%0*d", load.StampDigits, serial.Add(1)) }

// Names have a fixed length, so that bodies can be made from templates.
func newName() string             { return fmt.Sprintf("new-%010d", serial.Add(1)) }
func fixedName(client int) string { return fmt.Sprintf("fix-%010d", client) }

var (
	nameMark  = "mmm-0000000000"
	stampMark = strings.Repeat("9", load.StampDigits)
)

// form is an encoding with the template of a ConfigMap.
type form struct {
	*load.Encoding
	template *load.Template
}

var forms = []*form{formOf(load.JSON), formOf(load.Protobuf)}

func formOf(e *load.Encoding) *form {
	return &form{e, must(load.NewTemplate(e.ConfigMap(nameMark, stampMark, nil), nameMark, stampMark))}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the marks are in the body that was just made
	}
	return v
}

func (f *form) request(method, path string, body []byte) load.Request {
	return load.Request{Method: method, Path: path, Type: f.MediaType, Accept: f.MediaType, Body: body}
}

// operation is one kind of request.
type operation struct {
	name   string
	forms  []*form
	levels []int
	do     func(f *form, c *load.Conn, client int) error
}

var objects = load.ConfigMapsPath(namespaceObjects)

func objectPath(client int) string { return objects + "/" + fixedName(client) }

func putObject(f *form, c *load.Conn, client int) error {
	return c.Do(f.request(http.MethodPut, objectPath(client), f.template.Fill(fixedName(client), stamp())), nil)
}

func getObject(f *form, c *load.Conn, client int) error {
	return c.Do(f.request(http.MethodGet, objectPath(client), nil), nil)
}

var (
	create = operation{"create", forms, levels, func(f *form, c *load.Conn, _ int) error {
		return c.Do(f.request(http.MethodPost, objects, f.template.Fill(newName(), stamp())), nil)
	}}
	update    = operation{"update", forms, levels, putObject}
	get       = operation{"get", forms, levels, getObject}
	getAndPut = operation{"get and put", forms, levels, func(f *form, c *load.Conn, client int) error {
		if err := getObject(f, c, client); err != nil {
			return err
		}
		return putObject(f, c, client)
	}}
	apply = operation{"server-side apply", forms[:1], levels[:3], func(f *form, c *load.Conn, client int) error {
		r := f.request(http.MethodPatch, objectPath(client)+"?fieldManager=bench&force=true", f.template.Fill(fixedName(client), stamp()))
		r.Type = "application/apply-patch+yaml"
		return c.Do(r, nil)
	}}
)

// measureOperation returns the family of one operation, with every encoding and every level.
func measureOperation(op operation) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		b.loaded = true
		for _, s := range b.systems {
			if err := b.makeObjects(ctx, s); err != nil {
				return err
			}
		}
		for _, f := range op.forms {
			for _, level := range op.levels {
				name := fmt.Sprintf("%s, %s, %s", op.name, f.Name, clients(level))
				do := func(_ context.Context, s *system, client int) error { return op.do(f, s.conns[client], client) }
				if err := b.cell(ctx, name, level, do); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func clients(n int) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", n)
}

// makeObjects connects the clients and creates the objects that they read and write.
func (b *bench) makeObjects(ctx context.Context, s *system) error {
	most := levels[len(levels)-1]
	if err := s.namespace(ctx, namespaceObjects); err != nil {
		return err
	}
	return s.once("objects", func() error {
		return b.fill(ctx, s, most, func(i int) (string, []byte) {
			return objects, forms[1].template.Fill(fixedName(i), stamp())
		})
	})
}

// fill creates n objects as fast as 16 clients can, in protobuf.
func (b *bench) fill(ctx context.Context, s *system, n int, object func(i int) (path string, body []byte)) error {
	conns, err := s.connect(ctx, 16)
	if err != nil {
		return err
	}
	return load.Times(ctx, len(conns), n, func(_ context.Context, client, i int) error {
		path, body := object(i)
		return conns[client].Do(forms[1].request(http.MethodPost, path, body), nil)
	})
}

// cell measures one operation at one level on the systems in turns: its rate, its latency and the servers' CPU time.
// The clients are the systems' first connections.
func (b *bench) cell(ctx context.Context, name string, level int, do func(ctx context.Context, s *system, client int) error) error {
	b.progress("%s", name)
	for round := range b.rounds {
		for _, s := range b.turns(round) {
			if _, err := s.connect(ctx, level); err != nil {
				return err
			}
			each := func(ctx context.Context, client int) error { return do(ctx, s, client) }
			// Warm up: connections are opened, caches are filled.
			if _, err := load.Window(ctx, level, b.window/5, s.cpu, each); err != nil {
				return fmt.Errorf("%s, %s: %w", name, s.name, err)
			}
			profiled := b.profile(s, name, b.window)
			o, err := load.Window(ctx, level, b.window, s.cpu, each)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", name, s.name, err)
			}
			if err := profiled(); err != nil {
				return err
			}
			b.show(s, name, level, o)
		}
	}
	return nil
}

// show adds the rows of a window. With one client, which waits for each answer, the rate follows from the latency and
// has no aim.
func (b *bench) show(s *system, name string, level int, o load.Outcome) {
	aim := aimRate
	if level == 1 {
		aim = ""
	}
	b.add(s, name+": rate", "/s", aim, o.Rate())
	b.add(s, name+": p50", "ms", "", figures.Quantile(o.Latencies, 0.5))
	b.add(s, name+": p99", "ms", aimP99, figures.Quantile(o.Latencies, 0.99))
	b.add(s, name+": server CPU", "µs each", aimCPU, o.CPUEach())
}

// settle waits until a cluster has done the work that follows a load.
func (b *bench) settle(ctx context.Context) error {
	pause(ctx, max(b.idle/2, time.Second))
	return ctx.Err()
}
