package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
	"github.com/balsahq/balsa/e2e/load"
)

const (
	namespaceLong = "bench-long"
	longList      = 10000
	listRounds    = 5
)

// measureLongList measures the list of many objects, uncompressed and in one answer, with one client.
func measureLongList(ctx context.Context, b *bench) error {
	if err := b.openClients(ctx); err != nil {
		return err
	}
	b.progress("list of %d", longList)
	fill := encodings[1]
	for _, s := range b.systems {
		err := times(ctx, b.clients[s][:64], fill, longList, func(i int) request {
			return request{http.MethodPost, load.ConfigMapsPath(namespaceLong), fill.ConfigMap(fixedName(i), "0", nil)}
		})
		if err != nil {
			return err
		}
	}
	for _, e := range encodings {
		prefix := fmt.Sprintf("list of %d, %s, 1 client: ", longList, e.Name)
		for round := range listRounds + 1 {
			for _, s := range b.systems {
				began, cpu := time.Now(), figures.CPUTime(s.controlPlane())
				if err := b.clients[s][0].do(ctx, e, request{http.MethodGet, load.ConfigMapsPath(namespaceLong), nil}); err != nil {
					return err
				}
				passed, used := time.Since(began), figures.CPUTime(s.controlPlane())-cpu
				if round == 0 {
					continue // the first one warms up
				}
				b.table.Add(s.side(), figures.Of(prefix+"time", "ms", ""), float64(passed.Microseconds())/1e3)
				b.table.Add(s.side(), figures.Of(prefix+"server CPU", "ms", "ratio 0.333"), float64(used.Microseconds())/1e3)
			}
		}
	}
	return nil
}
