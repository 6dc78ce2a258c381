package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/balsahq/balsa/fault"
)

const (
	// waitersAtOnce and waitersOfOne bound the questions that wait for a resolver, of all clients and of one; flightsAtOnce
	// bounds the questions that are being asked, each with one or two sockets.
	waitersAtOnce = 1024
	waitersOfOne  = 128
	flightsAtOnce = 256
	// staleWait is how long a resolver may take before a stale answer is given instead.
	staleWait = 800 * time.Millisecond
)

var (
	errNoUpstream = errors.New("no resolver to ask")
	errBusy       = errors.New("too many questions wait for resolvers")
	errFailed     = errors.New("no resolver had an answer a moment ago, so none is asked")
)

// forwarder answers from the cache or asks other resolvers. It is safe for concurrent use.
type forwarder struct {
	cache     *cache
	resolvers resolvers
	settings  atomic.Pointer[Settings]
	now       func() time.Time
	running   sync.WaitGroup // flights and their attempts

	mu      sync.Mutex
	waiting int
	clients map[netip.Addr]int // how many questions of a client wait
	flights map[dns.Question]*flight
}

// flight is a question under way. msg and err are set before done is closed; msg is shared, and read-only.
type flight struct {
	done chan struct{}
	msg  *dns.Msg
	err  error
}

func newForwarder(host func() []string, dial func(context.Context, string, string) (net.Conn, error)) *forwarder {
	f := &forwarder{
		cache: newCache(), now: time.Now, clients: make(map[netip.Addr]int), flights: make(map[dns.Question]*flight),
	}
	f.resolvers = resolvers{host: host, dial: dial, running: &f.running, slowUntil: make(map[string]time.Time)}
	return f
}

// set replaces the settings, from the next question on.
func (f *forwarder) set(s *Settings) {
	f.settings.Store(s)
	f.cache.clear()
}

// cached returns the cached answer or failure; known is false when a resolver must be asked.
func (f *forwarder) cached(q dns.Question) (m *dns.Msg, known bool, err error) {
	have := f.cache.get(lower(q), f.now())
	switch {
	case have.msg != nil && (!have.stale || have.failed):
		return have.msg, true, nil
	case have.failed:
		return nil, true, errFailed
	}
	return nil, false, nil
}

// admit counts a question that may have to wait; errBusy says that there is no room. The caller must call leave afterwards.
func (f *forwarder) admit(client netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting >= waitersAtOnce || f.clients[client] >= waitersOfOne {
		return errBusy
	}
	f.waiting++
	f.clients[client]++
	return nil
}

func (f *forwarder) leave(client netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting--
	if f.clients[client]--; f.clients[client] == 0 {
		delete(f.clients, client)
	}
}

// ask answers a question from memory, or else from a resolver.
func (f *forwarder) ask(ctx context.Context, client netip.Addr, q dns.Question) (*dns.Msg, error) {
	if m, known, err := f.cached(q); known {
		return m, err
	}
	if err := f.admit(client); err != nil {
		return f.stale(q, err)
	}
	defer f.leave(client)
	return f.askResolvers(ctx, q)
}

// stale returns a stale answer when resolvers cannot be asked or fail with err, which it returns if there is none.
func (f *forwarder) stale(q dns.Question, err error) (*dns.Msg, error) {
	if have := f.cache.get(lower(q), f.now()); have.msg != nil {
		return have.msg, nil
	}
	return nil, err
}

// askResolvers asks resolvers, or waits for an answer to the same question that is under way.
func (f *forwarder) askResolvers(ctx context.Context, q dns.Question) (*dns.Msg, error) {
	q = lower(q)
	fl := f.startFlight(ctx, q)
	if fl == nil {
		return f.stale(q, errBusy)
	}
	var enough <-chan time.Time
	have := f.cache.get(q, f.now())
	if have.msg != nil {
		timer := time.NewTimer(staleWait)
		defer timer.Stop()
		enough = timer.C
	}
	select {
	case <-fl.done:
	case <-enough:
		return have.msg, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if fl.err != nil {
		return f.stale(q, fl.err)
	}
	return fl.msg.Copy(), nil
}

// startFlight returns the flight of a question, and starts one if there is none; nil when there is no room.
func (f *forwarder) startFlight(ctx context.Context, q dns.Question) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.flights[q]; fl != nil {
		return fl
	}
	if len(f.flights) >= flightsAtOnce {
		return nil
	}
	fl := &flight{done: make(chan struct{})}
	f.flights[q] = fl
	f.running.Go(func() {
		defer close(fl.done)
		settings := f.settings.Load()
		fl.err = fault.Contain("overlay/dns", func() (err error) {
			fl.msg, err = f.resolvers.resolve(ctx, q, settings)
			return err
		})
		switch {
		case fl.err == nil && f.settings.Load() == settings:
			f.cache.put(q, fl.msg, f.now())
		case fl.err != nil && ctx.Err() == nil:
			f.cache.fail(q, f.now())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.flights, q)
	})
	return fl
}
