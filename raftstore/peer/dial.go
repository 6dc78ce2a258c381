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

// dial connects to a peer: TCP, TLS, hello, all within DialTimeout. It returns an error unless the other end is server id of this
// cluster.
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

// connect makes a connection, exchanges hellos on it and registers it.
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

// refusedByProtocol reports whether err is a refusal, which an administrator must hear of, and not a failure of the network.
func refusedByProtocol(err error) bool {
	for _, e := range []error{ErrIdentity, ErrWrongCluster, ErrVersion, ErrPeerStale, ErrStale, ErrRefused, ErrMalformed, ErrTooLarge} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// secure dials addr and does the TLS handshake.
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

// expect returns an error unless the other end is server id and agreed on alpn.
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

// explain returns the sentinel for an error of crypto/tls: ErrIdentity when the other end is not the expected server, ErrRefused when it
// refused this server's certificate.
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

// introduce exchanges hellos on a dialed connection.
func (n *Network) introduce(ctx context.Context, c *conn) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	ours := n.ownHello()
	if _, err := c.Write(ours.encode()); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	theirs, err := readHello(c)
	if err != nil {
		return err
	}
	v := answerHello(ours, theirs)
	if theirs.server != c.peer {
		v = wrongServer
	}
	if v == welcome {
		v = mirror(theirs.verdict)
	}
	n.reportGeneration(v, theirs)
	if err := refusal(v, ours, theirs); err != nil {
		return err
	}
	if !stop() {
		return ctx.Err()
	}
	return c.SetDeadline(time.Time{})
}

// current reports whether a dialed connection leads to the peer's present address and was made with this server's newest certificate.
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

// dropStale closes the dialed connections to a peer that are not current.
func (n *Network) dropStale(peer string) {
	n.conns.drop(peer, func(c *conn) bool { return c.addr != "" && !n.current(c) })
}
