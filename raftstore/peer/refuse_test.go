package peer

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/balsahq/balsa/raftstore"
)

// ask tries both protocols from a to b.
func ask(t testing.TB, a, b *member) (raftErr, peerErr error) {
	t.Helper()
	raftErr = a.Transport().AppendEntries(raftID(b), "", &raftAppend{Term: 1}, &raftAppended{})
	_, peerErr = a.Peers().ReadIndex(within(t, time.Minute), b.id)
	return raftErr, peerErr
}

func TestStrangersAreRefusedOnBothSides(t *testing.T) {
	other := newAuthority(t)
	for _, c := range []struct {
		name string
		edit func(*world, *member) // of the one that dials
		want error
		log  string // at the one that was dialed
	}{
		{"certificate of another CA", func(w *world, m *member) { m.setCert(other.server(m.id)) }, ErrRefused, "refused: handshake"},
		{"no certificate", func(w *world, m *member) { m.setCert(&tls.Certificate{}) }, ErrRefused, "refused: handshake"},
		{"certificate of a node", func(w *world, m *member) {
			m.setCert(w.ca.issue("system:node:a", "system:nodes"))
		}, ErrRefused, "peer's certificate"},
		{"a node that calls itself a server", func(w *world, m *member) {
			m.setCert(w.ca.issue(CommonName(m.id), "system:nodes"))
		}, ErrRefused, "peer's certificate"},
		{"expired certificate", func(w *world, m *member) {
			m.setCert(w.ca.server(m.id, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }))
		}, ErrRefused, "refused: handshake"},
		{"certificate of another server", func(w *world, m *member) { m.setCert(w.ca.server(newID())) }, ErrRefused, "refused: peer"},
		{"another cluster", func(w *world, m *member) { m.hello.cluster = newID() }, ErrWrongCluster, "refused: peer"},
		{"newer protocol", func(w *world, m *member) { m.hello.version, m.hello.oldest = 9, 9 }, ErrVersion, "refused: peer"},
		{"older generation", func(w *world, m *member) { m.cfg.Generation = func() int64 { return 0 } }, ErrStale, "refused: peer"},
		{"newer generation", func(w *world, m *member) { m.cfg.Generation = func() int64 { return 2 } }, ErrPeerStale, "refused: peer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.join(), w.join()
			b.Serve(handler{})
			serveVotes(t, b)
			c.edit(w, a)
			for range 3 {
				raftErr, peerErr := ask(t, a, b)
				if !errors.Is(raftErr, c.want) {
					t.Errorf("Raft: %v", raftErr)
				}
				if !errors.Is(peerErr, raftstore.ErrUnreachable) || !errors.Is(peerErr, c.want) {
					t.Errorf("request: %v", peerErr)
				}
			}
			eventually(t, "the one dialed logs it", func() bool { return b.log.count(c.log) > 0 })
			if n := b.log.count(c.log); n != 1 {
				t.Errorf("logged %d times", n)
			}
			if n := a.log.count("dialed peer"); n != 1 {
				t.Errorf("logged %d times by the one that dialed", n)
			}
			eventually(t, "no connection is left", func() bool { return b.conns.count(a.id) == 0 })
			must(t, errors.Join(ask(t, b, b.friend()))) // b still works
		})
	}
}

// friend is another good server of the same cluster.
func (m *member) friend() *member {
	f := m.w.join()
	f.Serve(handler{})
	serveVotes(m.w.t, f)
	return f
}

func TestDialedServerMustBeTheOneMeant(t *testing.T) {
	other := newAuthority(t)
	for name, cert := range map[string]func(*world, *member) *tls.Certificate{
		"another server": func(w *world, m *member) *tls.Certificate { return w.ca.server(newID()) },
		"a node":         func(w *world, m *member) *tls.Certificate { return w.ca.issue("system:node:x", "system:nodes") },
		"a node with the name": func(w *world, m *member) *tls.Certificate {
			return w.ca.issue("system:node:x", "system:nodes", func(c *x509.Certificate) { c.DNSNames = []string{ServerName(m.id)} })
		},
		"another CA": func(w *world, m *member) *tls.Certificate { return other.server(m.id) },
		"expired": func(w *world, m *member) *tls.Certificate {
			return w.ca.server(m.id, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.join(), w.join()
			b.Serve(handler{})
			serveVotes(t, b)
			b.setCert(cert(w, b))
			raftErr, peerErr := ask(t, a, b)
			if !errors.Is(raftErr, ErrIdentity) || !errors.Is(peerErr, ErrIdentity) {
				t.Errorf("%v\n%v", raftErr, peerErr)
			}
			if n := a.log.count("dialed peer"); n != 1 {
				t.Errorf("logged %d times", n)
			}
		})
	}
}

func TestAddressOfAnotherServerIsRefused(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.join(), w.join(), w.join()
	c.Serve(handler{})
	addr, _ := w.resolve(c.id)
	w.move(b.id, addr)
	raftErr, peerErr := ask(t, a, b)
	if !errors.Is(raftErr, ErrIdentity) || !errors.Is(peerErr, ErrIdentity) {
		t.Errorf("%v\n%v", raftErr, peerErr)
	}
}

func TestOwnAddressIsRefused(t *testing.T) {
	w := newWorld(t)
	a := w.join()
	a.Serve(handler{})
	raftErr, peerErr := ask(t, a, a)
	if !errors.Is(raftErr, ErrIdentity) || !errors.Is(peerErr, ErrIdentity) {
		t.Errorf("%v\n%v", raftErr, peerErr)
	}
}

func TestStaleServerHearsOfTheNewerGeneration(t *testing.T) {
	w := newWorld(t)
	type heard struct {
		who string
		gen int64
	}
	hears := make(chan heard, 10)
	old := w.join(func(c *Config) { c.OnGeneration = func(id string, g int64) { hears <- heard{id, g} } })
	unasked := func(string, int64) { t.Error("the newer server was told") }
	newer := w.join(func(c *Config) { c.Generation = func() int64 { return 3 }; c.OnGeneration = unasked })
	for _, dial := range []func(){
		func() { ask(t, old, newer) },
		func() { ask(t, newer, old) },
	} {
		dial()
		for range 2 { // both protocols
			if h := <-hears; h != (heard{newer.id, 3}) {
				t.Errorf("heard %v", h)
			}
		}
	}
}

// tlsTo is a TLS connection to b's port with a's certificate.
func tlsTo(t testing.TB, a, b *member, alpn string) *tls.Conn {
	t.Helper()
	addr, _ := b.w.resolve(b.id)
	cert, _ := a.certificate()
	c, err := tls.Dial("tcp", addr, &tls.Config{
		RootCAs: a.w.ca.pool, ServerName: ServerName(b.id), NextProtos: []string{alpn}, Certificates: []tls.Certificate{*cert},
	})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func closedSoon(t testing.TB, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, errTimeout) {
		t.Error("still open")
	}
}

func TestGarbageInsteadOfHello(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	for _, alpn := range []string{ALPNRaft, ALPNPeer} {
		for _, garbage := range [][]byte{{0xff, 0xff}, bytes.Repeat([]byte{0}, 64), []byte("\x00\x10GET / HTTP/1.1\r\n\r\n")} {
			c := tlsTo(t, a, b, alpn)
			_, err := c.Write(garbage)
			must(t, err)
			closedSoon(t, c)
		}
	}
	eventually(t, "logged", func() bool { return b.log.count("refused: peer") > 0 })
	if n := b.log.count("refused: peer"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestGarbageAfterHello(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	b.Transport()
	head := func(k kind, n uint32) []byte {
		return binary.BigEndian.AppendUint32([]byte{byte(k)}, n)
	}
	for _, garbage := range [][]byte{
		head(kindAppend, 1<<32-1), head(kindAppend, maxFrame+1), head(99, 0), append(head(kindVote, 3), 1, 2, 3),
		append(head(kindDone, 1), 0),
	} {
		c := tlsTo(t, a, b, ALPNRaft)
		_, err := c.Write(a.ownHello().encode())
		must(t, err)
		if h, err := readHello(c); err != nil || h.verdict != welcome {
			t.Fatal(h, err)
		}
		_, err = c.Write(garbage)
		must(t, err)
		closedSoon(t, c)
	}
	if n := b.log.count("Raft message"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestConnectionsOfOnePeerAreBounded(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	b.Transport()
	for range 3 * maxInbound {
		c := tlsTo(t, a, b, ALPNRaft)
		_, err := c.Write(a.ownHello().encode())
		must(t, err)
		_, err = readHello(c)
		must(t, err)
		if n := b.conns.count(a.id); n > maxInbound {
			t.Fatalf("%d connections", n)
		}
	}
	if n := b.conns.count(a.id); n != maxInbound {
		t.Errorf("%d connections at the end", n)
	}
}

func TestSilentPeerIsClosedAfterTheHelloTime(t *testing.T) {
	w := newWorld(t)
	a, b := w.join(), w.join()
	c := tlsTo(t, a, b, ALPNPeer)
	closedSoon(t, c)
}
