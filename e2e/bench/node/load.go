package main

import (
	"context"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

// window lets every client send requests from next, one after the other, until the window has passed.
func window(ctx context.Context, s system, clients []*client, e *load.Encoding, length time.Duration, next func(client int) request) (load.Outcome, error) {
	cpu := func() time.Duration { return figures.CPUTime(s.controlPlane()) }
	return load.Window(ctx, len(clients), length, cpu, func(ctx context.Context, i int) error { return clients[i].do(ctx, e, next(i)) })
}

// times sends exactly n requests, divided among the clients.
func times(ctx context.Context, clients []*client, e *load.Encoding, n int, make func(i int) request) error {
	return load.Times(ctx, len(clients), n, func(ctx context.Context, client, i int) error { return clients[client].do(ctx, e, make(i)) })
}
