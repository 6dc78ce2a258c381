package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/e2e/figures"
)

const (
	namespaceWatched = "bench-watched"
	watchers         = 1000
	watchersEach     = 50 // on one connection; a server allows 100 streams
	eventsPerSecond  = 50
	writers          = 8           // so that a slow write does not slow the pace
	watchDrain       = time.Second // how long late events are still timed
)

// measureWatch lets many watchers see the writes of one object.
func measureWatch(ctx context.Context, b *bench) error {
	if err := b.openClients(ctx); err != nil {
		return err
	}
	for _, e := range encodings {
		for range b.rounds {
			for _, s := range b.systems {
				b.progress("watch, %s%s", e.name, suffix(s))
				if err := fanOut(ctx, b, s, e); err != nil {
					return fmt.Errorf("watch, %s: %w", e.name, err)
				}
			}
		}
	}
	return nil
}

// audience is what the watchers of one round have seen.
type audience struct {
	opened    sync.WaitGroup
	joined    sync.WaitGroup
	until     atomic.Int64 // nanoseconds; deliveries after it are late
	onTime    atomic.Int64
	mu        sync.Mutex
	latencies []float64
	failed    error
}

func fanOut(ctx context.Context, b *bench, s system, e *encoding) error {
	name := "watched-" + strconv.FormatInt(serial.Add(1), 10)
	if err := b.clients[s][0].do(ctx, e, request{http.MethodPost, configMapsPath(namespaceWatched), e.configMap(name, "0")}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var a audience
	a.until.Store(int64(1<<63 - 1))
	a.opened.Add(watchers)
	for i := range watchers {
		c := b.clients[s][1+i/watchersEach]
		a.joined.Go(func() { a.watch(ctx, c, e, name) })
	}
	a.opened.Wait()
	window := 3 * b.window
	cpu, began := figures.CPUTime(s.controlPlane()), time.Now()
	a.until.Store(began.Add(window).UnixNano())
	sent, err := write(ctx, b.clients[s][len(b.clients[s])-writers:], e, name, began.Add(window))
	passed, used := time.Since(began), figures.CPUTime(s.controlPlane())-cpu
	pause(ctx, watchDrain)
	cancel()
	a.joined.Wait()
	if err := errors.Join(err, a.failed); err != nil {
		return err
	}
	prefix := fmt.Sprintf("watch, %s, %d watchers × %d events/s: ", e.name, watchers, eventsPerSecond)
	b.table.Add(s.side(), figures.Of(prefix+"written", "/s", strconv.Itoa(eventsPerSecond)), float64(sent)/passed.Seconds())
	b.table.Add(s.side(), figures.Of(prefix+"delivered", "/s", strconv.Itoa(watchers*eventsPerSecond)), float64(a.onTime.Load())/window.Seconds())
	b.table.Add(s.side(), figures.Of(prefix+"p50", "ms", ""), figures.Quantile(a.latencies, 0.5))
	b.table.Add(s.side(), figures.Of(prefix+"p99", "ms", ""), figures.Quantile(a.latencies, 0.99))
	b.table.Add(s.side(), figures.Of(prefix+"server CPU", "µs each", "ratio 0.333"), float64(used.Nanoseconds())/1e3/float64(max(1, a.onTime.Load())))
	return nil
}

// write updates the object at an even pace until the deadline, as long as one
// of the clients is free.
func write(ctx context.Context, clients []*client, e *encoding, name string, deadline time.Time) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pace := time.NewTicker(time.Second / eventsPerSecond)
	defer pace.Stop()
	end := time.NewTimer(time.Until(deadline))
	defer end.Stop()
	due := make(chan struct{})
	var sent atomic.Int64
	var joined sync.WaitGroup
	for _, c := range clients {
		joined.Go(func() {
			for range due {
				body := e.configMap(name, strconv.FormatInt(time.Now().UnixNano(), 10))
				if err := c.do(ctx, e, request{http.MethodPut, configMapsPath(namespaceWatched) + "/" + name, body}); err != nil {
					cancel(err)
					return
				}
				sent.Add(1)
			}
		})
	}
	func() {
		defer close(due)
		for {
			select {
			case <-pace.C:
			case <-end.C:
				return
			case <-ctx.Done():
				return
			}
			select {
			case due <- struct{}{}:
			case <-end.C:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	joined.Wait()
	return sent.Load(), context.Cause(ctx)
}

// watch reads events until ctx ends. The first one is the object as it was.
func (a *audience) watch(ctx context.Context, c *client, e *encoding, name string) {
	opened := sync.OnceFunc(a.opened.Done)
	defer opened()
	var mine []float64
	path := configMapsPath(namespaceWatched) + "?watch=true&fieldSelector=metadata.name%3D" + name
	err := func() error {
		body, err := c.open(ctx, e, request{http.MethodGet, path, nil})
		if err != nil {
			return err
		}
		defer body.Close()
		frames := bufio.NewReaderSize(body, 4096)
		for first := true; ; first = false {
			frame, err := e.frame(frames)
			if err != nil {
				return err
			}
			if first {
				opened()
				continue
			}
			now := time.Now().UnixNano()
			sent, err := stampOf(frame)
			if err != nil {
				return err
			}
			if now <= a.until.Load() {
				a.onTime.Add(1)
			}
			mine = append(mine, float64(now-sent)/1e6)
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latencies = append(a.latencies, mine...)
	if ctx.Err() == nil && a.failed == nil {
		a.failed = fmt.Errorf("a watch ended: %w", err)
	}
}

// frame reads one event: a line of JSON, or protobuf after four bytes of length.
func (e *encoding) frame(r *bufio.Reader) ([]byte, error) {
	if e == encodings[0] {
		var line []byte
		for {
			piece, err := r.ReadSlice('\n')
			if err == nil && line == nil {
				return piece, nil
			}
			line = append(line, piece...)
			if !errors.Is(err, bufio.ErrBufferFull) {
				return line, err
			}
		}
	}
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, frame)
	return frame, err
}

// stampDigits is the length of a Unix time in nanoseconds, until 2286.
const stampDigits = 19

// stampMarks stand before the stamp: in JSON, and in protobuf (a map entry with
// the key as field 1 and the value as field 2).
var stampMarks = [][]byte{
	[]byte(`"` + stampKey + `":"`),
	append([]byte{0x0a, byte(len(stampKey))}, stampKey+"\x12"+string(rune(stampDigits))...),
}

// stampOf finds when the object was written without decoding it: a thousand
// watchers share the machine with the server.
func stampOf(frame []byte) (int64, error) {
	for _, mark := range stampMarks {
		if i := bytes.Index(frame, mark); i >= 0 && len(frame) >= i+len(mark)+stampDigits {
			text := frame[i+len(mark):][:stampDigits]
			return strconv.ParseInt(string(text), 10, 64)
		}
	}
	return 0, fmt.Errorf("an event without a stamp: %q", slices.Clip(frame[:min(len(frame), 200)]))
}
