package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

const (
	customGroup     = "bench.balsa.dev"
	customObjects   = 1000 // in each list
	namespaceCustom = "bench-custom"
	customListed    = "bench-custom-many"
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// definition returns a CustomResourceDefinition with a usual schema.
func definition(group, plural string) map[string]any {
	text := map[string]any{"type": "string"}
	schema := map[string]any{"type": "object", "properties": map[string]any{
		"spec": map[string]any{"type": "object", "required": []string{"stamp"}, "properties": map[string]any{
			"stamp": text, "filling": text,
			"replicas": map[string]any{"type": "integer", "minimum": 0, "default": 1},
			"labels":   map[string]any{"type": "object", "additionalProperties": text},
			"rules": map[string]any{"type": "array", "items": map[string]any{"type": "object", "properties": map[string]any{
				"name": text, "hosts": map[string]any{"type": "array", "items": text}}}},
		}},
		"status": map[string]any{"type": "object", "properties": map[string]any{"phase": text}},
	}}
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": plural, "singular": plural + "x", "kind": "K" + plural, "listKind": "K" + plural + "List"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": schema}, "subresources": map[string]any{"status": map[string]any{}}}},
		},
	}
}

func customPath(group, plural, namespace string) string {
	return fmt.Sprintf("/apis/%s/v1/namespaces/%s/%s", group, namespace, plural)
}

// customForm returns JSON with the template of a custom object.
func customForm() (*form, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": customGroup + "/v1", "kind": "Kwidgets", "metadata": map[string]any{"name": nameMark},
		"spec": map[string]any{"stamp": stampMark, "filling": load.Filling, "replicas": 3, "labels": map[string]string{"a": "b"},
			"rules": []any{map[string]any{"name": "first", "hosts": []string{"one.example", "two.example"}}}},
	})
	if err != nil {
		return nil, err
	}
	t, err := load.NewTemplate(body, nameMark, stampMark)
	return &form{load.JSON, t}, err
}

// measureCustom measures operations on objects of a CustomResourceDefinition.
func measureCustom(ctx context.Context, b *bench) error {
	b.loaded = true
	f, err := customForm()
	if err != nil {
		return err
	}
	listed := customPath(customGroup, "widgets", customListed)
	for _, s := range b.systems {
		if err := b.makeCustom(ctx, s, f, listed); err != nil {
			return err
		}
	}
	path := customPath(customGroup, "widgets", namespaceCustom)
	at := func(client int) string { return path + "/" + fixedName(client) }
	operations := []operation{
		{"custom resources: create", []*form{f}, levels[:2], func(f *form, c *load.Conn, _ int) error {
			return c.Do(f.request(http.MethodPost, path, f.template.Fill(newName(), stamp())), nil)
		}},
		{"custom resources: get", []*form{f}, levels[:2], func(f *form, c *load.Conn, client int) error {
			return c.Do(f.request(http.MethodGet, at(client), nil), nil)
		}},
		{"custom resources: server-side apply", []*form{f}, levels[:2], func(f *form, c *load.Conn, client int) error {
			r := f.request(http.MethodPatch, at(client)+"?fieldManager=bench&force=true", f.template.Fill(fixedName(client), stamp()))
			r.Type = "application/apply-patch+yaml"
			return c.Do(r, nil)
		}},
	}
	for _, op := range operations {
		for _, level := range op.levels {
			name := fmt.Sprintf("%s, %s", op.name, clients(level))
			do := func(_ context.Context, s *system, client int) error { return op.do(f, s.conns[client], client) }
			if err := b.cell(ctx, name, level, do); err != nil {
				return err
			}
		}
	}
	l := listing{name: fmt.Sprintf("custom resources: list of %d, 1 client", customObjects), level: 1, rounds: b.rounds}
	return b.list(ctx, l, one(f, listed))
}

func (b *bench) makeCustom(ctx context.Context, s *system, f *form, listed string) error {
	if _, err := s.connect(ctx, levels[1]); err != nil {
		return err
	}
	if err := s.make(ctx, definitionsPath, definition(customGroup, "widgets")); err != nil {
		return err
	}
	for _, name := range []string{namespaceCustom, customListed} {
		if err := s.namespace(ctx, name); err != nil {
			return err
		}
	}
	path := customPath(customGroup, "widgets", namespaceCustom)
	if err := served(ctx, s.conns[0], path); err != nil {
		return err
	}
	return s.once("custom objects", func() error {
		return load.Times(ctx, levels[1], customObjects+levels[1], func(_ context.Context, client, i int) error {
			where := listed
			if i >= customObjects {
				where, i = path, i-customObjects
			}
			return s.conns[client].Do(f.request(http.MethodPost, where, f.template.Fill(fixedName(i), stamp())), nil)
		})
	})
}

// served waits until a path is served.
func served(ctx context.Context, c *load.Conn, path string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for ; ctx.Err() == nil; pause(ctx, tick) {
		err := c.Do(load.Request{Method: http.MethodGet, Path: path + "?limit=1", Accept: load.JSON.MediaType}, nil)
		var refused *load.StatusError
		if !errors.As(err, &refused) || refused.Code != http.StatusNotFound {
			return err
		}
	}
	return fmt.Errorf("%s is not served after %v", path, startPatience)
}

// definitionsMany is how many CustomResourceDefinitions measureDefinitions installs, in groups of ten.
const definitionsMany = 500

// measureDefinitions measures the time and the memory to install many CustomResourceDefinitions.
func measureDefinitions(ctx context.Context, b *bench) error {
	b.loaded = true
	n := definitionsMany
	if b.quick {
		n /= 5
	}
	name := fmt.Sprintf("%d CustomResourceDefinitions: ", n)
	group := func(i int) string { return fmt.Sprintf("g%02d.%s", i/10, customGroup) }
	plural := func(i int) string { return fmt.Sprintf("k%03d", i) }
	for _, s := range b.systems {
		b.progress("%d CustomResourceDefinitions on %s", n, s.name)
		before, err := figures.PSS(s.pids())
		if err != nil {
			return err
		}
		conns, err := s.connect(ctx, 8)
		if err != nil {
			return err
		}
		profiled := b.profile(s, name, 5*b.window)
		began, cpu := time.Now(), s.cpu()
		err = load.Times(ctx, len(conns), n, func(_ context.Context, client, i int) error {
			body, err := json.Marshal(definition(group(i), plural(i)))
			if err != nil {
				return err
			}
			return conns[client].Do(forms[0].request(http.MethodPost, definitionsPath, body), nil)
		})
		if err == nil {
			err = load.Times(ctx, len(conns), n, func(ctx context.Context, client, i int) error {
				return served(ctx, conns[client], customPath(group(i), plural(i), "default"))
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.add(s, name+"until all are served", "s", aimP99, time.Since(began).Seconds())
		if err := errors.Join(profiled(), b.settle(ctx)); err != nil {
			return err
		}
		b.add(s, name+"server CPU until then and after", "s", aimCPU, (s.cpu() - cpu).Seconds())
		after, err := figures.PSS(s.pids())
		if err != nil {
			return err
		}
		b.add(s, name+"memory added by them", "MiB", "", after-before)
		if err := b.memory(s, name+"memory after, PSS"); err != nil {
			return err
		}
	}
	return nil
}
