package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// dial connects to a peer: TCP, TLS, hello, all within DialTimeout. It refuses
// everybody but that very server of this very cluster.
func (n *Network) dial(ctx context.Context, id, alpn string) (*conn, error) {
	if n.over.Load() {
		return nil, ErrClosed
	}
	addr, ok := n.cfg.Resolve(id)
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrUnknownPeer, id)
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout)
	defer cancel()
	c, err := n.connect(ctx, id, addr, alpn)
	if err != nil {
		err = fmt.Errorf("peer: dial %s at %s: %w", id, addr, explain(err))
		if refusedByProtocol(err) {
			n.refuse.refused(id, "dialed peer", err)
		}
		return nil, err
	}
	return c, nil
}

// connect makes a registered connection whose hellos are exchanged.
func (n *Network) connect(ctx context.Context, id, addr, alpn string) (*conn, error) {
	if id == n.cfg.ServerID {
		return nil, fmt.Errorf("%w: it is this one", ErrIdentity)
	}
	c, err := n.secure(ctx, id, addr, alpn)
	if err != nil {
		return nil, err
	}
	if err := n.conns.add(c); err != nil {
		return nil, err
	}
	if err := n.introduce(ctx, c); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// refusedByProtocol tells a refusal, which an operator has to hear of, from a
// network that fails.
func refusedByProtocol(err error) bool {
	for _, e := range []error{ErrIdentity, ErrWrongCluster, ErrVersion, ErrPeerStale, ErrStale, ErrRefused, ErrMalformed, ErrTooLarge} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// secure makes the TLS connection.
func (n *Network) secure(ctx context.Context, id, addr, alpn string) (*conn, error) {
	own, err := n.cfg.Certificate()
	if err != nil {
		return nil, fmt.Errorf("own certificate: %w", err)
	}
	tcp, err := n.cfg.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = tcp.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	t := tls.Client(tcp, &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{alpn},
		ServerName:             ServerName(id),
		RootCAs:                n.cfg.Roots(),
		SessionTicketsDisabled: true,
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil },
		VerifyConnection:       func(s tls.ConnectionState) error { return expect(s, id, alpn) },
	})
	if err := t.Handshake(); err != nil {
		_ = tcp.Close()
		return nil, err
	}
	c := &conn{Conn: t, peer: id, alpn: alpn, leaf: t.ConnectionState().VerifiedChains[0][0], addr: addr}
	if len(own.Certificate) > 0 {
		c.own = own.Certificate[0]
	}
	return c, nil
}

// expect refuses every server but id, and one that did not agree on alpn.
func expect(s tls.ConnectionState, id, alpn string) error {
	got, _, err := remote(s)
	if err != nil {
		return err
	}
	if got != id {
		return fmt.Errorf("%w: it is %s", ErrIdentity, got)
	}
	if s.NegotiatedProtocol != alpn {
		return fmt.Errorf("%w: it does not speak %s", ErrVersion, alpn)
	}
	return nil
}

// explain names what crypto/tls says: ErrIdentity about a server that is not the
// one that was meant, ErrRefused when the server refused this one's certificate.
func explain(err error) error {
	var host x509.HostnameError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var op *net.OpError
	switch {
	case errors.As(err, &host), errors.As(err, &authority), errors.As(err, &invalid):
		return fmt.Errorf("%w: %w", ErrIdentity, err)
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// introduce is the hello exchange on a dialed connection.
func (n *Network) introduce(ctx context.Context, c *conn) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	ours := n.greeting()
	if _, err := c.Write(ours.encode()); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	theirs, err := readHello(c)
	if err != nil {
		return err
	}
	v := judge(ours, theirs)
	if theirs.server != c.peer {
		v = wrongServer
	}
	if v == welcome {
		v = mirror(theirs.verdict)
	}
	n.note(v, theirs)
	if err := refusal(v, ours, theirs); err != nil {
		return err
	}
	if !stop() {
		return ctx.Err()
	}
	return c.SetDeadline(time.Time{})
}

// current tells whether a dialed connection is still to where the peer is, and
// shows the certificate that is newest here.
func (n *Network) current(c *conn) bool {
	if c.closed.Load() {
		return false
	}
	addr, ok := n.cfg.Resolve(c.peer)
	if ok && addr != c.addr {
		return false
	}
	own, err := n.cfg.Certificate()
	return err != nil || len(own.Certificate) == 0 || bytes.Equal(own.Certificate[0], c.own)
}

// renew closes the dialed connections to a peer that are not current.
func (n *Network) renew(peer string) {
	n.conns.drop(peer, func(c *conn) bool { return c.addr != "" && !n.current(c) })
}
