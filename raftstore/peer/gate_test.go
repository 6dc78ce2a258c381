package peer

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// waiting is how many handshakes are not done.
func (m *member) waiting() int {
	m.port.gate.mu.Lock()
	defer m.port.gate.mu.Unlock()
	return m.port.gate.handshakes.Len()
}

// empty waits until nothing is counted any more.
func (m *member) empty(t *testing.T) {
	t.Helper()
	g := m.port.gate
	eventually(t, "nothing is counted any more", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.handshakes.Len()+g.anonymous.Len()+g.known.Len()+len(g.handled)+g.turns.Waiting() == 0
	})
}

// bounded makes a port with other limits.
func bounded(t *testing.T, edit func(*PortConfig)) *member {
	t.Helper()
	m := newWorld(t).join()
	m.stopPort()
	m.listen("127.0.0.1:0", edit)
	serveBoth(t, m)
	return m
}

func TestIdleConnectionsDoNotDelayOthers(t *testing.T) {
	m := bounded(t, func(c *PortConfig) { c.MaxHandshakes = 128 })
	addr, _ := m.w.resolve(m.id)
	quietly := handshakes(t, m, 50, "127.0.0.1")
	for i := range 1000 {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		defer c.Close()
		if i%2 == 0 {
			_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1}) // a ClientHello that never ends
		}
	}
	eventually(t, "all accepted", func() bool { return m.waiting() == m.port.cfg.MaxHandshakes })
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		crowded := handshakes(t, m, 50, from)
		t.Logf("handshake from %s: median %v alone, %v among 1000 idle connections", from, quietly[25], crowded[25])
		if limit := m.port.cfg.HandshakeTimeout / 2; crowded[25] > limit { // a handshake that waits for an idle connection waits until its timeout
			t.Errorf("from %s: median %v, more than %v", from, crowded[25], limit)
		}
	}
	const crowded = " err=\"peer: too many connections whose handshake is not done\""
	if n := m.log.count("remote=127.0.0.1" + crowded); n != 1 {
		t.Errorf("the address of the idle connections is logged %d times", n)
	}
	if all := m.log.count(crowded); all > 2 || all != m.log.count("remote=127.0.0.1"+crowded)+m.log.count("remote=127.0.0.2"+crowded) {
		t.Errorf("logged %d times, more than once for an address", all)
	}
	eventually(t, "idle connections end", func() bool { return m.waiting() == 0 })
}

// TestAStormIsQueuedWhileStrangersStall: a thousand clients of one address connect at once, among as many that say nothing or
// stop in the middle of their handshake; each of the thousand is served.
func TestAStormIsQueuedWhileStrangersStall(t *testing.T) {
	m := bounded(t, func(c *PortConfig) {
		c.MaxComputing = 2
		c.HandshakeTimeout, c.HandshakeWait = time.Minute, time.Minute // whoever waits for a staller runs out of time
	})
	addr, _ := m.w.resolve(m.id)
	var stallers []net.Conn
	t.Cleanup(func() {
		for _, c := range stallers {
			_ = c.Close()
		}
	})
	for i := range 1000 {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		stallers = append(stallers, c)
		if i%4 == 0 {
			_, _ = c.Write(firstFlight(t, clientTLS(m))) // and the rest of the handshake never comes
		}
	}
	eventually(t, "all accepted", func() bool { return m.waiting() == len(stallers) })
	const clients = 1000
	var all sync.WaitGroup
	var served atomic.Int32
	conf := clientTLS(m)
	for range clients {
		all.Go(func() {
			c, err := (&tls.Dialer{Config: conf}).DialContext(t.Context(), "tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if answered(c.(*tls.Conn), "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer jane\r\n\r\n") == http.StatusOK {
				served.Add(1)
			}
		})
	}
	all.Wait()
	if served.Load() != clients {
		t.Errorf("%d of %d were served", served.Load(), clients)
	}
	if n := m.waiting(); n != len(stallers) {
		t.Errorf("%d of %d stallers are left: they had time", n, len(stallers))
	}
	for _, c := range stallers {
		_ = c.Close()
	}
	m.empty(t)
}

// firstFlight is a whole ClientHello.
func firstFlight(t *testing.T, conf *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	go func() { _ = tls.Client(b, conf).Handshake(); _ = b.Close() }()
	buf := make([]byte, 16<<10)
	n, err := a.Read(buf)
	must(t, err)
	return buf[:n]
}

// answered sends a request and returns the answer's status; 0 without an answer.
func answered(c *tls.Conn, request string) int {
	if _, err := io.WriteString(c, request); err != nil {
		return 0
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	if resp.ContentLength >= 0 { // a watch's answer does not end
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	return resp.StatusCode
}

func (m *member) connect(t *testing.T, certs ...*tls.Certificate) *tls.Conn {
	t.Helper()
	addr, _ := m.w.resolve(m.id)
	c, err := tls.Dial("tcp", addr, clientTLS(m, certs...))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const (
	asNobody = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	asJane   = "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer jane\r\n\r\n"
	asJoe    = "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer joe\r\n\r\n"
	watching = "GET /watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer jane\r\n\r\n"
)

// TestStrangersGiveWayByIdleness: a new anonymous connection takes the place of the anonymous one of its address that was used longest
// ago, whether that one has sent a request or not, and never the place of a connection whose user is proved.
func TestStrangersGiveWayByIdleness(t *testing.T) {
	m := bounded(t, func(c *PortConfig) { c.MaxAnonymousPerIP = 4 })
	jane := m.connect(t)
	if code := answered(jane, asJane); code != http.StatusOK {
		t.Fatal(code)
	}
	admin := m.connect(t, m.w.ca.issue("admin", "system:masters"))
	first, second := m.connect(t), m.connect(t)
	for _, c := range []*tls.Conn{first, second, first} {
		if code := answered(c, asNobody); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	for range 3 {
		c := m.connect(t)
		_, _ = io.WriteString(c, "GET / HT") // a head that does not come
	}
	_ = second.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := second.Read(make([]byte, 1)); err == nil || errors.Is(err, errTimeout) {
		t.Errorf("the one used the longest ago is open: %v", err)
	}
	if code := answered(first, asNobody); code != http.StatusOK {
		t.Errorf("one used later was answered %d", code)
	}
	for range 10 {
		if code := answered(m.connect(t), asNobody); code != http.StatusOK {
			t.Errorf("a newcomer was answered %d", code)
		}
	}
	for name, c := range map[string]*tls.Conn{"jane": jane, "admin": admin} {
		if code := answered(c, asJane); code != http.StatusOK {
			t.Errorf("%s was answered %d", name, code)
		}
	}
	eventually(t, "logged", func() bool { return m.log.count("without a verified certificate") > 0 })
	if n := m.log.count("without a verified certificate"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// TestAUsersConnectionsKeepNobodyElseOut: a user has so many connections and no more, the idle ones giving way; others of the
// same address, with a token or a certificate, and strangers, notice nothing.
func TestAUsersConnectionsKeepNobodyElseOut(t *testing.T) {
	m := bounded(t, func(c *PortConfig) { c.MaxAnonymousPerIP, c.MaxPerUser, c.MaxKnown = 4, 8, 16 })
	var idle *tls.Conn
	for i := range 8 {
		c, request := m.connect(t), watching
		if i == 3 {
			request, idle = asJane, c
		}
		if code := answered(c, request); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	last := m.connect(t)
	if code := answered(last, watching); code != http.StatusOK {
		t.Errorf("a newcomer was answered %d, and the user had an idle connection", code)
	}
	if code := answered(idle, asJane); code != 0 {
		t.Errorf("the idle connection was answered %d", code)
	}
	if code := answered(m.connect(t), asJane); code != http.StatusTooManyRequests {
		t.Errorf("a user with as many watches as it may was answered %d", code)
	}
	admin := m.w.ca.issue("admin", "system:masters")
	for range 20 {
		if code := answered(m.connect(t), asJoe); code != http.StatusOK {
			t.Errorf("another user was answered %d", code)
		}
		if code := answered(m.connect(t), asNobody); code != http.StatusOK {
			t.Errorf("a stranger was answered %d", code)
		}
		if code := answered(m.connect(t, admin), asNobody); code != http.StatusOK {
			t.Errorf("a client with a certificate was answered %d", code)
		}
	}
	m.port.gate.mu.Lock()
	n, all := m.port.gate.anonymous.Len(), m.port.gate.known.Len()
	m.port.gate.mu.Unlock()
	if n > 4 || all > 16 {
		t.Errorf("%d strangers and %d others are connected", n, all)
	}
}

// TestHandshakesBeyondTheQueueAreRefused: whoever waits for its turn too long is told so, and gives its place back.
func TestHandshakesBeyondTheQueueAreRefused(t *testing.T) {
	g := newGate(PortConfig{MaxComputing: 1, HandshakeWait: time.Millisecond}.withDefaults())
	greet := func() *portConn {
		a, b := net.Pipe()
		t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
		c := &portConn{Conn: a, gate: g, greeting: &greeting{began: time.Now(), turn: make(chan bool, 1)}}
		if _, ok := g.admit(c); !ok {
			t.Fatal("not admitted")
		}
		return c
	}
	first, second, third := greet(), greet(), greet()
	must(t, g.awaitTurn(first))
	if err := g.awaitTurn(second); err != errTurn {
		t.Errorf("%v, want %v", err, errTurn)
	}
	g.cfg.HandshakeWait = time.Minute
	closed := make(chan error)
	go func() { closed <- g.awaitTurn(third) }()
	eventually(t, "it waits", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.turns.Waiting() == 1 })
	_ = third.Close()
	if err := <-closed; err == nil {
		t.Error("a connection that is closed has its turn")
	}
	g.releaseTurn(first)
	must(t, g.awaitTurn(first))
	for _, c := range []*portConn{first, second, third, third} {
		_ = c.Close()
	}
	if g.handshakes.Len()+g.turns.Waiting() != 0 {
		t.Errorf("left over: %+v", g)
	}
}
