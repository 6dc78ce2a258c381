package mux

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// pair is both ends of a connection, as server and node have them.
type pair struct {
	opener *Opener
	node   net.Conn // the node's end, for a test that plays the node itself
	ended  chan error
	over   chan error // what Opener.Run returned
}

// tcp is a connection over loopback.
func tcp(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

type dialFunc = func(context.Context, string) (net.Conn, error)

// start is a server that is connected to a node that dials with dial; a nil dial leaves the node's end to the test.
func start(t testing.TB, dial dialFunc, settings ...func(*OpenerConfig, *CarryConfig)) *pair {
	t.Helper()
	a, b := tcp(t)
	server, node := OpenerConfig{Conn: a}, CarryConfig{Conn: b, Dial: dial}
	for _, s := range settings {
		s(&server, &node)
	}
	p := &pair{opener: NewOpener(server), node: b, ended: make(chan error, 1), over: make(chan error, 1)}
	go func() { p.over <- p.opener.Run() }()
	if dial != nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { p.ended <- Carry(ctx, node) }()
		t.Cleanup(func() { cancel(); <-p.ended })
	}
	t.Cleanup(func() { p.opener.link.fail(net.ErrClosed); <-p.over })
	return p
}

// plainDial dials targets as addresses.
func plainDial(ctx context.Context, target string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", target)
}

// serve listens and gives each connection to handle.
func serve(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { defer c.Close(); handle(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

func open(t testing.TB, o *Opener, target string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := o.Open(ctx, target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c.(*stream)
}

func TestStreamIsAConnection(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		accepted := make(chan net.Conn, 1)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, nil, err
		}
		go func() {
			c, err := l.Accept()
			if err == nil {
				accepted <- c
			}
		}()
		p := start(t, plainDial)
		c, err := p.opener.Open(t.Context(), l.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		other := <-accepted
		return c, other, func() { c.Close(); other.Close(); l.Close(); p.opener.link.fail(net.ErrClosed) }, nil
	})
}

func TestBothHalvesEndApart(t *testing.T) {
	target := serve(t, func(c *net.TCPConn) {
		sent, err := io.ReadAll(c) // to the end of the client's half, and only then an answer
		if err != nil {
			t.Error(err)
		}
		sum := sha256.Sum256(sent)
		c.Write(sum[:])
		c.CloseWrite()
		io.Copy(io.Discard, c)
	})
	p := start(t, plainDial)
	c := open(t, p.opener, target)
	want := make([]byte, 3<<20)
	rand.Read(want)
	if _, err := c.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if sum := sha256.Sum256(want); err != nil || !bytes.Equal(got, sum[:]) {
		t.Fatalf("%x, %v", got, err)
	}
	if _, err := c.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after the end of writing: %v", err)
	}
	// The other way round: the target ends its half first and goes on reading.
	read := make(chan string, 1)
	target = serve(t, func(c *net.TCPConn) {
		c.Write([]byte("first"))
		c.CloseWrite()
		rest, _ := io.ReadAll(c)
		read <- string(rest)
	})
	c = open(t, p.opener, target)
	if got, err := io.ReadAll(c); string(got) != "first" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := c.Write([]byte("then")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got := <-read; got != "then" {
		t.Errorf("the target read %q", got)
	}
}

func TestManyStreamsAtOnceAndASlowReaderHoldsUpNobody(t *testing.T) {
	target := serve(t, func(c *net.TCPConn) { io.Copy(c, c); c.CloseWrite() })
	flood := serve(t, func(c *net.TCPConn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	p := start(t, plainDial)
	slow := open(t, p.opener, flood) // nobody reads it
	var all sync.WaitGroup
	for range 50 {
		c := open(t, p.opener, target)
		all.Go(func() {
			want := make([]byte, 1<<20)
			rand.Read(want)
			go func() { c.Write(want); c.CloseWrite() }()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes came back of %d, equal %v: %v", len(got), len(want), bytes.Equal(got, want), err)
			}
		})
	}
	all.Wait()
	slow.mu.Lock()
	if held := len(slow.buf); held > Window {
		t.Errorf("%d bytes are held for a reader that does not read", held)
	}
	slow.mu.Unlock()
}

// TestWindowsGrowForReadersThatKeepUpWithinABudget: what windows grew by is given back with their streams.
func TestWindowsGrowForReadersThatKeepUpWithinABudget(t *testing.T) {
	target := serve(t, func(c *net.TCPConn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	p := start(t, plainDial)
	c := open(t, p.opener, target)
	window := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.window }
	buf := make([]byte, 64<<10)
	for window() == Window {
		c.mu.Lock()
		c.granted = time.Now().Add(time.Hour) // however slow this machine is
		c.mu.Unlock()
		if _, err := c.Read(buf); err != nil {
			t.Fatalf("the window is still %d: %v", window(), err)
		}
	}
	if grown := window(); grown > maxWindow || p.opener.link.lent.Load() != int64(grown-Window) {
		t.Errorf("%d, of which %d are lent", grown, p.opener.link.lent.Load())
	}
	c.Close()
	if n := p.opener.link.lent.Load(); n != 0 {
		t.Errorf("%d are still lent", n)
	}
	if !p.opener.link.lend(maxLent) || p.opener.link.lend(1) {
		t.Error("the budget is not what it is said to be")
	}
	p.opener.link.lent.Store(0)
}

func TestWhatTheNodeSaysIsTheError(t *testing.T) {
	p := start(t, func(_ context.Context, target string) (net.Conn, error) {
		if target == "closed" {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}
		return nil, errors.New("not this one: " + target)
	})
	_, err := p.opener.Open(t.Context(), "lan")
	var refusal Refusal
	if !errors.As(err, &refusal) || refusal != "not this one: lan" {
		t.Errorf("%v", err)
	}
	if _, err = p.opener.Open(t.Context(), "closed"); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
	if _, err := p.opener.Open(t.Context(), strings.Repeat("x", 1000)); err == nil {
		t.Error("a target of 1000 bytes is taken")
	}
	if n := p.opener.Streams(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}

func TestWhoGivesUpEndsTheDialOnTheNode(t *testing.T) {
	ended := make(chan error, 1)
	p := start(t, func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.opener.Open(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	<-ended
	if p.opener.Streams() != 0 {
		t.Error("the stream is still open")
	}
}

func TestStreamsAreBoundedAtBothEnds(t *testing.T) {
	target := serve(t, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	p := start(t, plainDial, func(o *OpenerConfig, c *CarryConfig) { o.MaxStreams = 4 })
	for range 4 {
		open(t, p.opener, target)
	}
	if _, err := p.opener.Open(t.Context(), target); !errors.Is(err, ErrBusy) {
		t.Errorf("the fifth of four: %v", err)
	}
	p = start(t, plainDial, func(o *OpenerConfig, c *CarryConfig) { c.MaxStreams = 4 })
	for range 4 {
		open(t, p.opener, target)
	}
	if _, err := p.opener.Open(t.Context(), target); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("the fifth where the node takes four: %v", err)
	}
	c := open(t, start(t, plainDial).opener, target)
	c.Close()
}

func TestCloseReachesATargetThatIgnoresHalves(t *testing.T) {
	gone := make(chan error, 1)
	target := serve(t, func(c *net.TCPConn) {
		for { // a writer that never reads
			if _, err := c.Write([]byte("tick")); err != nil {
				gone <- err
				return
			}
		}
	})
	p := start(t, plainDial)
	c := open(t, p.opener, target)
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the target's connection is still open")
	}
}

func TestATargetThatResetsIsToldSo(t *testing.T) {
	target := serve(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	})
	p := start(t, plainDial)
	c := open(t, p.opener, target)
	c.Write([]byte("x"))
	if _, err := io.ReadAll(c); err == nil || !strings.Contains(err.Error(), "reset by peer") {
		t.Errorf("%v", err)
	}
}

func TestALostConnectionEndsAllStreamsWithTheReason(t *testing.T) {
	target := serve(t, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	p := start(t, plainDial)
	c := open(t, p.opener, target)
	p.node.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "connection to this server is lost") {
		t.Errorf("%v", err)
	}
	if _, err := p.opener.Open(t.Context(), target); err == nil {
		t.Error("a stream was opened on a lost connection")
	}
}

// TestASilentNodeIsLeft: its host takes bytes, and nothing ever comes.
func TestASilentNodeIsLeft(t *testing.T) {
	p := start(t, nil, func(o *OpenerConfig, _ *CarryConfig) { o.Patience = 20 * time.Millisecond })
	if _, err := p.opener.Open(t.Context(), "x"); !errors.Is(err, ErrSilent) {
		t.Errorf("%v", err)
	}
	select {
	case <-p.opener.Done():
	case <-time.After(time.Minute):
		t.Error("the connection is kept")
	}
	// One that is slow to connect and lives is waited for, much longer than one that says nothing.
	p = start(t, func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(o *OpenerConfig, _ *CarryConfig) { o.Patience = time.Second })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := p.opener.Open(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a slow one: %v", err)
	}
}

func TestUnwantedConnectionIsToldWhy(t *testing.T) {
	p := start(t, plainDial)
	c := open(t, p.opener, serve(t, func(c *net.TCPConn) { io.Copy(io.Discard, c) }))
	p.opener.Bye("another one has come")
	err := <-p.ended
	p.ended <- nil
	var bye Bye
	if !errors.As(err, &bye) || bye != "another one has come" {
		t.Errorf("%v", err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("its streams go on")
	}
}

// TestWhatNobodySaysEndsTheConnection: each case is what a node sends after its stream 1 was opened.
func TestWhatNobodySaysEndsTheConnection(t *testing.T) {
	opened := appendFrame(nil, kindOpened, 1, nil)
	big := bytes.Repeat(appendFrame(nil, kindData, 1, make([]byte, maxPayload)), Window/maxPayload+1)
	for name, raw := range map[string][]byte{
		"garbage":                     []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"a node that opens":           appendFrame(nil, kindOpen, 3, []byte("10.0.0.1:80")),
		"hello from the node":         appendFrame(nil, kindHello, 0, nil),
		"a stream nobody opened":      appendFrame(nil, kindData, 9, []byte("x")),
		"opened twice":                append(bytes.Clone(opened), opened...),
		"data before it is open":      appendFrame(nil, kindData, 1, []byte("x")),
		"more than the window":        append(bytes.Clone(opened), big...),
		"credit without measure":      append(bytes.Clone(opened), appendFrame(nil, kindCredit, 1, []byte{255, 255, 255, 255})...),
		"two ends":                    append(bytes.Clone(opened), bytes.Repeat(appendFrame(nil, kindEnd, 1, nil), 2)...),
		"data after the end":          append(append(bytes.Clone(opened), appendFrame(nil, kindEnd, 1, nil)...), appendFrame(nil, kindData, 1, []byte("x"))...),
		"an empty frame of data":      append(bytes.Clone(opened), appendFrame(nil, kindData, 1, nil)...),
		"a frame for no stream":       append(bytes.Clone(opened), appendFrame(nil, kindData, 0, []byte("x"))...),
		"a frame longer than allowed": {byte(kindReset), 255, 255, 0, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, nil)
			go func() {
				if c, err := p.opener.Open(t.Context(), "x"); err == nil {
					defer c.Close()
					<-p.opener.Done() // nobody reads
				}
			}()
			if _, err := io.ReadFull(p.node, make([]byte, 2*headerSize+1)); err != nil { // hello, open
				t.Fatal(err)
			}
			if _, err := p.node.Write(raw); err != nil {
				t.Log(err)
			}
			select {
			case err := <-p.over:
				p.over <- nil
				if !errors.Is(err, ErrProtocol) {
					t.Errorf("%v", err)
				}
			case <-time.After(time.Minute):
				t.Error("the connection is kept")
			}
		})
	}
}

// FuzzOpener: whatever a node sends, the server's end neither panics nor holds more than a window a stream.
func FuzzOpener(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, kindOpened, 1, nil), kindData, 1, []byte("x")))
	f.Add(appendFrame(nil, kindReset, 1, []byte("no")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		o := NewOpener(OpenerConfig{Conn: &scripted{Reader: bytes.NewReader(raw)}})
		s, err := o.begin("x")
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Run(); err == nil {
			t.Error("no reason")
		}
		if len(s.buf) > Window {
			t.Errorf("%d bytes are held", len(s.buf))
		}
		s.Close()
	})
}

// FuzzCarry: whatever a server sends, a node neither panics nor keeps anything afterwards.
func FuzzCarry(f *testing.F) {
	f.Add(appendFrame(appendFrame(appendFrame(nil, kindHello, 0, nil), kindOpen, 1, []byte("x")), kindData, 1, []byte("x")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := Carry(t.Context(), CarryConfig{Conn: &scripted{Reader: bytes.NewReader(raw)}, MaxStreams: 8, Dial: func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			b.Close()
			return a, nil
		}})
		if err == nil {
			t.Error("no reason")
		}
	})
}

// scripted is a connection whose other end says what is written down.
type scripted struct {
	io.Reader
	net.Conn
}

func (s *scripted) Read(p []byte) (int, error)       { return s.Reader.Read(p) }
func (s *scripted) Write(p []byte) (int, error)      { return len(p), nil }
func (s *scripted) Close() error                     { return nil }
func (s *scripted) SetReadDeadline(time.Time) error  { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }

func BenchmarkThroughput(b *testing.B) {
	target := serve(b, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	c := open(b, start(b, plainDial).opener, target)
	c.SetDeadline(time.Time{})
	chunk := make([]byte, 32<<10)
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		if _, err := c.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
}
