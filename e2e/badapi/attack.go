package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally counts the answers to an attack.
type tally struct {
	mu    sync.Mutex
	codes map[int]int
	cut   int // connections that the server closed, or requests without an answer
	left  int // shots that are left
}

func newTally(shots int) *tally { return &tally{codes: map[int]int{}, left: shots} }

// take returns false when no shot is left.
func (t *tally) take() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left--
	return t.left >= 0
}

func (t *tally) add(code int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.cut++
	} else {
		t.codes[code]++
	}
}

// String returns, for example, "400: 17, cut: 2".
func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, code := range slices.Sorted(maps.Keys(t.codes)) {
		out = append(out, fmt.Sprintf("%d: %d", code, t.codes[code]))
	}
	if t.cut > 0 {
		out = append(out, fmt.Sprintf("cut: %d", t.cut))
	}
	return strings.Join(out, ", ")
}

// bomb is one kind of harmful request.
type bomb struct {
	name string
	// want are the allowed status codes. Without any, the bomb consists of connections, which the server may close.
	want []int
	// clients is the number of concurrent clients; shots is the number of requests in a test.
	clients, shots int
	// anew: the other client opens a connection for each request, when its latency is measured.
	anew bool
	fire func(ctx context.Context, t *target, c *http.Client) (int, error)
}

// attack sends requests until ctx ends or count has no shot left.
func (b *bomb) attack(ctx context.Context, t *target, count *tally) {
	var all sync.WaitGroup
	c := t.client(bad)
	defer c.CloseIdleConnections()
	for range b.clients {
		all.Go(func() {
			for ctx.Err() == nil && count.take() {
				code, err := b.fire(ctx, t, c)
				if ctx.Err() == nil || err == nil {
					count.add(code, err)
				}
			}
		})
	}
	all.Wait()
}

// observer is the other client: it reads and updates an object, one request after the other, and records their
// durations.
type observer struct {
	took   []time.Duration
	faults []error
}

const victim = "/api/v1/namespaces/default/configmaps/victim"

// watchOver sends the observer's requests until ctx ends. With anew it opens a connection for each.
func watchOver(ctx context.Context, t *target, c *http.Client, anew bool) *observer {
	o := &observer{}
	for i := 0; ctx.Err() == nil; i++ {
		s := shot{method: http.MethodGet, path: victim}
		if i%10 == 9 {
			s = shot{method: http.MethodPatch, path: victim, kind: "application/merge-patch+json", body: fmt.Appendf(nil, `{"data":{"i":"%d"}}`, i)}
		}
		began := time.Now()
		code, err := t.send(ctx, c, s)
		took := time.Since(began)
		if ctx.Err() != nil {
			break
		}
		if anew {
			c.CloseIdleConnections()
		}
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%s %s: %d", s.method, s.path, code)
		}
		if err != nil {
			o.faults = append(o.faults, err)
		}
		o.took = append(o.took, took)
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	slices.Sort(o.took)
	return o
}

// quantile of the requests' durations; 0 if there were none.
func (o *observer) quantile(q float64) time.Duration {
	if len(o.took) == 0 {
		return 0
	}
	return o.took[min(len(o.took)-1, int(q*float64(len(o.took))))]
}

// String returns, for example, "p50 1.2ms p99 7ms max 10ms of 812".
func (o *observer) String() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
	return fmt.Sprintf("p50 %6s  p99 %7s  max %7s ms of %4d", ms(o.quantile(.5)), ms(o.quantile(.99)), ms(o.quantile(1)), len(o.took))
}
