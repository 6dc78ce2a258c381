package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/balsahq/balsa/fault"
)

// ErrNoServer: none of the servers could be reached.
var ErrNoServer = errors.New("no API server can be reached")

// race connects to the servers in order and returns the first connection that succeeds. It begins with the next server when
// one takes longer than the stagger. It cancels the other attempts, waits for them, and calls discard on their connections.
func race[T any](ctx context.Context, s *Set, connect func(context.Context, Server) (T, error), discard func(T)) (T, error) {
	type result struct {
		value  T
		server Server
		err    error
	}
	var none T
	list := s.candidates(time.Now())
	results := make(chan result, len(list))
	attempts, cancel := context.WithCancel(ctx)
	started, order := map[string]int{}, 0 // under way, numbered as they began
	defer func() {
		cancel()
		for range started {
			if r := <-results; r.err == nil {
				discard(r.value)
			}
		}
	}()
	start := func() {
		one := list[0]
		list, started[one.ID] = list[1:], order
		order++
		go func() {
			ctx, cancel := context.WithTimeout(attempts, s.cfg.Attempt)
			defer cancel()
			var v T
			err := fault.Contain("node/servers", func() (err error) { v, err = connect(ctx, one); return err })
			results <- result{v, one, err}
		}()
	}
	var errs []error
	next := time.NewTimer(0)
	defer next.Stop()
	for len(list) > 0 || len(started) > 0 {
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-next.C:
			if len(list) > 0 {
				start()
				next.Reset(s.cfg.Stagger)
			}
		case r := <-results:
			number := started[r.server.ID]
			delete(started, r.server.ID)
			if r.err == nil {
				s.reached(r.server.ID)
				for id, n := range started {
					if n < number { // asked a stagger earlier, and not done yet
						s.failed(id)
					}
				}
				return r.value, nil
			}
			if ctx.Err() == nil {
				s.failed(r.server.ID)
			}
			errs = append(errs, fmt.Errorf("%s: %w", r.server.Addr, r.err))
			next.Reset(0)
		}
	}
	if len(errs) == 0 {
		return none, fmt.Errorf("%w: the list of servers is empty", ErrNoServer)
	}
	return none, fmt.Errorf("%w: %w", ErrNoServer, errors.Join(errs...))
}

// connect dials one server and keeps track of the connection.
func (s *Set) connect(ctx context.Context, one Server) (*conn, error) {
	c, err := s.cfg.Dial(ctx, "tcp", one.Addr)
	if err != nil {
		return nil, err
	}
	return s.track(c, one.Addr), nil
}

// DialContext connects to a server, whatever addr says: for clients with a transport of their own, which take a stopped
// server for a slow one. A connection made here is closed when Drop or Update says so.
func (s *Set) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	c, err := race(ctx, s, s.connect, func(c *conn) { c.Close() })
	if err != nil {
		return nil, err
	}
	return c, nil
}
