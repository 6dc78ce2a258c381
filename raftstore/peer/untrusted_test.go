package peer

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"sync/atomic"
	"testing"
	"time"
)

func TestConnectionsOfARetiredAuthorityAreClosed(t *testing.T) {
	w := newWorld(t)
	m, next := w.join(), newAuthority(t)
	both := x509.NewCertPool()
	both.AddCert(w.ca.cert)
	both.AddCert(next.cert)
	var roots atomic.Pointer[x509.CertPool]
	roots.Store(both)
	m.stopPort()
	m.listen("127.0.0.1:0", func(c *PortConfig) { c.Roots, c.Hints = roots.Load, roots.Load })
	served := make(chan struct{}, 8)
	m.port.Handle("test/1", func(c *tls.Conn) {
		defer c.Close()
		served <- struct{}{}
		_, _ = io.Copy(io.Discard, c)
	})
	dial := func(cert *tls.Certificate) *tls.Conn {
		t.Helper()
		conf := clientTLS(m, cert)
		conf.NextProtos, conf.MinVersion = []string{"test/1"}, tls.VersionTLS13
		conf.Certificates, conf.GetClientCertificate = nil, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		addr, _ := w.resolve(m.id)
		c, err := tls.Dial("tcp", addr, conf)
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		<-served
		return c
	}
	old, fresh := dial(w.ca.issue("n1", "system:nodes")), dial(next.issue("n2", "system:nodes"))
	if n := m.port.DropUntrusted(); n != 0 {
		t.Errorf("%d are closed while both count", n)
	}
	roots.Store(next.pool)
	if n := m.port.DropUntrusted(); n != 1 {
		t.Errorf("%d are closed, want the one of the retired authority", n)
	}
	must(t, old.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := old.Read(make([]byte, 1)); err == nil || err == errTimeout {
		t.Errorf("the old connection: %v", err)
	}
	if _, err := fresh.Write([]byte("x")); err != nil {
		t.Errorf("the new connection: %v", err)
	}
}
