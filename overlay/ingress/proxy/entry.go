package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/overlay/ingress/plan"
	"github.com/balsahq/balsa/overlay/ingress/route"
)

// entry is one open port.
type entry struct {
	proxy    *Proxy
	number   uint16
	withTLS  bool
	plan     atomic.Pointer[plan.Port]
	listener net.Listener
	addr     net.Addr
	server   *http.Server

	// life is the context of all requests; it ends when the port has drained. It also ends connections that changed their
	// protocol, which http.Server no longer tracks.
	life context.Context
	end  context.CancelFunc
}

// open listens on a port and serves it.
func (p *Proxy) open(want *plan.Port) error {
	listener, err := p.cfg.Listen(want.Number)
	if err != nil {
		return err
	}
	e := &entry{proxy: p, number: want.Number, withTLS: want.TLS, addr: listener.Addr()}
	e.listener = &guarded{Listener: listener, guard: p.guard, full: p.warnTooMany}
	e.plan.Store(want)
	e.life, e.end = context.WithCancel(context.Background())
	e.server = p.newServer(e)
	p.entries[want.Number] = e
	p.running.Go(fault.Contained("ingress/proxy", func() {
		var err error
		if e.withTLS {
			err = e.server.ServeTLS(e.listener, "", "")
		} else {
			err = e.server.Serve(e.listener)
		}
		if p.ctx.Err() == nil {
			p.cfg.Logger.Debug("ingress port closed", "port", e.number, "reason", err)
		}
	}))
	p.cfg.Logger.Info("ingress listens", "address", e.addr, "tls", e.withTLS)
	return nil
}

func (p *Proxy) newServer(e *entry) *http.Server {
	s := &http.Server{
		Handler: fault.Handler("ingress/proxy", e), ReadHeaderTimeout: p.cfg.HeaderTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
		DisableGeneralOptionsHandler: true, BaseContext: func(net.Listener) context.Context { return e.life }, ErrorLog: slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelDebug),
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 250, MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 256 << 10,
			SendPingTimeout: time.Minute, PingTimeout: 20 * time.Second, WriteByteTimeout: p.cfg.StallTimeout,
		},
	}
	s.Protocols.SetHTTP1(true)
	if e.withTLS {
		s.Protocols.SetHTTP2(true)
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: e.certificate}
	} else {
		s.Protocols.SetUnencryptedHTTP2(true)
	}
	return s
}

// certificate returns the certificate for the server name that the client sent, or else a self-signed one.
func (e *entry) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	var found *tls.Certificate
	e.plan.Load().Certificates.Find(route.NormalizeHost(hello.ServerName), func(list []*tls.Certificate, _ int) bool {
		for _, c := range list {
			if hello.SupportsCertificate(c) == nil {
				found = c
				return true
			}
			if found == nil {
				found = c
			}
		}
		return found != nil
	})
	if found != nil {
		return found, nil
	}
	return e.proxy.spare.get()
}

// spare is the self-signed certificate for names without a certificate. It is made at its first use.
type spare struct {
	mu   sync.Mutex
	cert *tls.Certificate
}

func (s *spare) get() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert != nil {
		return s.cert, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Balsa ingress: no certificate for this name"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	s.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return s.cert, nil
}
