package peer

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/peer/peerpb"
)

// handler is a store made of functions.
type handler struct {
	forward func(context.Context, raftstore.Batch) error
	err     error
	ended   chan<- string
}

func (h handler) Forwarded(ctx context.Context, b raftstore.Batch) error {
	if h.forward != nil {
		return h.forward(ctx, b)
	}
	return h.err
}
func (h handler) ServeReadIndex(context.Context) (uint64, error) { return 42, h.err }
func (h handler) ServeKeepAlive(_ context.Context, id raftstore.LeaseID) (time.Duration, error) {
	return time.Duration(id) * time.Second, h.err
}
func (h handler) PeerEnded(id string) {
	if h.ended != nil {
		h.ended <- id
	}
}

func (h handler) ServeLeaseRemaining(_ context.Context, id raftstore.LeaseID) (time.Duration, error) {
	return time.Duration(id) * time.Millisecond, h.err
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestRequestsReachTheHandler(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	big := bytes.Repeat([]byte("z"), maxMessage-1024)
	var got raftstore.Batch
	b.Serve(handler{forward: func(_ context.Context, x raftstore.Batch) error { got = x; return nil }})
	ctx, p := within(t, time.Minute), a.Peers()
	for _, entry := range [][]byte{[]byte("entry"), big} {
		must(t, p.Forward(ctx, b.id, raftstore.Batch{Entry: entry, Oldest: 7}))
		if !bytes.Equal(got.Entry, entry) || got.Oldest != 7 {
			t.Errorf("batch of %d came as %d, oldest %d", len(entry), len(got.Entry), got.Oldest)
		}
	}
	if err := p.Forward(ctx, b.id, raftstore.Batch{Entry: append(big, 'z')}); !errors.Is(err, raftstore.ErrTooLarge) {
		t.Errorf("batch over the bound: %v", err)
	}
	if i, err := p.ReadIndex(ctx, b.id); i != 42 || err != nil {
		t.Error(i, err)
	}
	if d, err := p.KeepAlive(ctx, b.id, 5); d != 5*time.Second || err != nil {
		t.Error(d, err)
	}
	if d, err := p.LeaseRemaining(ctx, b.id, 5); d != 5*time.Millisecond || err != nil {
		t.Error(d, err)
	}
	if n := a.conns.count(b.id); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestErrorsKeepTheirIdentityAcrossTheWire(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	ctx, p := within(t, time.Minute), a.Peers()
	plain := errors.New("something else")
	for _, want := range []error{
		raftstore.ErrNotLeader, raftstore.ErrNoLeader, raftstore.ErrDiskFull, raftstore.ErrDiskReadOnly, raftstore.ErrDisk,
		raftstore.ErrClosed, raftstore.ErrLeaseNotFound, raftstore.ErrLeaseExists, raftstore.ErrTooLarge, raftstore.ErrInvalid, plain,
	} {
		text := fmt.Errorf("lease 7: %w: really", want)
		b.Serve(handler{err: text})
		_, e1 := p.ReadIndex(ctx, b.id)
		_, e2 := p.KeepAlive(ctx, b.id, 1)
		_, e3 := p.LeaseRemaining(ctx, b.id, 1)
		e4 := p.Forward(ctx, b.id, raftstore.Batch{})
		for _, err := range []error{e1, e2, e3, e4} {
			if err == nil || err.Error() != text.Error() || want != plain && !errors.Is(err, want) {
				t.Errorf("%v came as %v", text, err)
			}
			for _, w := range wireErrors {
				if w.err != want && errors.Is(err, w.err) {
					t.Errorf("%v is also %v", err, w.err)
				}
			}
		}
	}
}

func TestUnreachablePeersFailFast(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	ctx, p := within(t, time.Minute), a.Peers()
	_, err := p.ReadIndex(ctx, newID())
	if !errors.Is(err, raftstore.ErrUnreachable) || !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("unknown peer: %v", err)
	}
	if _, err = p.ReadIndex(ctx, b.id); !errors.Is(err, raftstore.ErrUnreachable) {
		t.Errorf("store is not open: %v", err)
	}
	b.Serve(handler{})
	if _, err = p.ReadIndex(ctx, b.id); err != nil {
		t.Error(err)
	}
	b.stopPort()
	begin := time.Now()
	for range 100 {
		if _, err = p.ReadIndex(ctx, b.id); !errors.Is(err, raftstore.ErrUnreachable) {
			t.Fatalf("peer that is gone: %v", err)
		}
	}
	if d := time.Since(begin); d > 20*time.Second { // the first dial alone may take as long as that
		t.Errorf("100 requests to a peer that is gone took %v", d)
	}
	addr, _ := w.resolve(b.id)
	b.listen(addr)
	eventually(t, "reached again", func() bool { _, err := p.ReadIndex(ctx, b.id); return err == nil })
}

func TestCallersContextEndsTheWait(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	b.Serve(handler{forward: func(ctx context.Context, _ raftstore.Batch) error { <-ctx.Done(); return ctx.Err() }})
	err := a.Peers().Forward(within(t, 100*time.Millisecond), b.id, raftstore.Batch{})
	if !errors.Is(err, raftstore.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// ice is a connection whose bytes stop while it is frozen; nothing is lost.
type ice struct {
	net.Conn
	frozen *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *ice) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.frozen.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *ice) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func TestFrozenPeerIsNoticed(t *testing.T) {
	w := newWorld(t)
	var frozen atomic.Bool
	a := w.join(func(c *Config) {
		c.PingInterval = 100 * time.Millisecond
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &ice{Conn: conn, frozen: &frozen, closed: make(chan struct{})}, nil
		}
	})
	b := w.join()
	b.Serve(handler{forward: func(ctx context.Context, _ raftstore.Batch) error { frozen.Store(true); <-ctx.Done(); return nil }})
	begin := time.Now()
	err := a.Peers().Forward(within(t, time.Minute), b.id, raftstore.Batch{})
	if !errors.Is(err, raftstore.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("request to a frozen peer: %v", err)
	}
	t.Log("noticed after", time.Since(begin))
}

func TestBatchesUnderWayAreBounded(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	var now, most atomic.Int64
	free := make(chan struct{})
	b.Serve(handler{forward: func(ctx context.Context, _ raftstore.Batch) error {
		n := now.Add(1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); {
			seen = most.Load()
		}
		defer now.Add(-1)
		<-free
		return nil
	}})
	ctx := within(t, time.Minute)
	l, err := a.link(b.id)
	must(t, err)
	refused := make(chan error, 3*maxForwards)
	for range cap(refused) { // around the sender's own bound
		go func() {
			_, err := l.client.Forward(ctx, &peerpb.ForwardRequest{Entry: make([]byte, 1000)})
			refused <- err
		}()
	}
	for range 2 * maxForwards {
		if err := <-refused; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("batch over the share: %v", err)
		}
	}
	if _, err := a.Peers().ReadIndex(ctx, b.id); err != nil {
		t.Errorf("another request meanwhile: %v", err)
	}
	eventually(t, "as many batches as may be are under way", func() bool { return now.Load() == maxForwards })
	close(free)
	for range maxForwards {
		must(t, <-refused)
	}
	if most.Load() != maxForwards {
		t.Errorf("%d at once", most.Load())
	}
	eventually(t, "nothing is counted", func() bool {
		b.service.mu.Lock()
		defer b.service.mu.Unlock()
		return len(b.service.forwards) == 0
	})
}

func TestSenderWaitsForItsShare(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	b.Serve(handler{forward: func(context.Context, raftstore.Batch) error { return nil }})
	ctx := within(t, time.Minute)
	var wg sync.WaitGroup
	for range 20 * maxForwards {
		wg.Go(func() {
			if err := a.Peers().Forward(ctx, b.id, raftstore.Batch{Entry: make([]byte, 1000)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestDropEndsWhatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	entered := make(chan struct{}, 1)
	b.Serve(handler{forward: func(ctx context.Context, _ raftstore.Batch) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}})
	ctx := within(t, time.Minute)
	failed := make(chan error, 1)
	go func() { failed <- a.Peers().Forward(ctx, b.id, raftstore.Batch{}) }()
	<-entered
	a.Drop(b.id)
	if err := <-failed; !errors.Is(err, raftstore.ErrUnreachable) {
		t.Errorf("request under way: %v", err)
	}
	if n := a.conns.count(b.id); n != 0 {
		t.Errorf("%d connections after Drop", n)
	}
	if _, err := a.Peers().ReadIndex(ctx, b.id); err != nil {
		t.Errorf("after Drop: %v", err)
	}
}

func TestRenewedCertificateReplacesConnections(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(func(c *Config) { c.PingInterval = 50 * time.Millisecond }), w.join()
	b.Serve(handler{})
	serveVotes(t, b)
	ctx := within(t, time.Minute)
	ask := func() {
		t.Helper()
		eventually(t, "asked", func() bool { _, err := a.Peers().ReadIndex(ctx, b.id); return err == nil })
		must(t, a.Transport().AppendEntries(raftID(b), "", &raftAppend{Term: 1}, &raftAppended{}))
	}
	ask()
	next := w.ca.server(a.id, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(-time.Second) })
	a.setCert(next)
	shown := func() (old, renewed int) {
		b.conns.mu.Lock()
		defer b.conns.mu.Unlock()
		for c := range b.conns.open[a.id] {
			if bytes.Equal(c.leaf.Raw, next.Certificate[0]) {
				renewed++
			} else {
				old++
			}
		}
		return old, renewed
	}
	eventually(t, "only the new certificate is shown", func() bool {
		ask()
		old, renewed := shown()
		return old == 0 && renewed >= 2
	})
}

func TestConnectionEndsWithItsCertificate(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	b.Serve(handler{})
	a.setCert(w.ca.server(a.id, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(6 * time.Second) }))
	_, err := a.Peers().ReadIndex(within(t, 5*time.Second), b.id)
	must(t, err)
	if b.conns.count(a.id) != 1 {
		t.Fatal("no connection")
	}
	eventually(t, "the connection ends", func() bool { return b.conns.count(a.id) == 0 })
}

func TestEndedNetworkRefuses(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	b.Serve(handler{})
	ctx := within(t, time.Minute)
	_, err := a.Peers().ReadIndex(ctx, b.id)
	must(t, err)
	a.stopNet()
	if _, err = a.Peers().ReadIndex(ctx, b.id); !errors.Is(err, raftstore.ErrUnreachable) || !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := a.Transport().AppendEntries(raftID(b), "", &raftAppend{}, &raftAppended{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if n := a.conns.count(b.id); n != 0 {
		t.Errorf("%d connections left", n)
	}
}
