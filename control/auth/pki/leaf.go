package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/control/atomicfile"
)

// Usage is the purpose of a leaf certificate.
type Usage uint8

// A Server leaf serves TLS, a Client leaf authenticates to the API server, a FrontProxy leaf to aggregated servers, a
// Peer leaf does both between servers.
const (
	Server Usage = iota
	Client
	FrontProxy
	Peer
)

// Request describes a leaf certificate.
type Request struct {
	// File is the name below Config.Dir, without ".pem".
	File         string
	CommonName   string
	Organization []string
	Names        []string
	IPs          []net.IP
	Usage        Usage
}

// Leaf is one certificate with its key: on disk, and in memory as the newest version. It is safe for concurrent use.
type Leaf struct {
	authority *Authority
	path      string
	current   atomic.Pointer[pair]

	mu    sync.Mutex // held while the file is read or made
	req   Request
	retry time.Time // the earliest time at which a handshake renews the certificate, by the monotonic clock
}

// GetCertificate is the function for a server's tls.Config. It returns a certificate that is valid by the wall clock, and
// renews it first if the clock has jumped.
func (l *Leaf) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &l.valid().tls, nil
}

// GetClientCertificate is the function for a client's tls.Config; see GetCertificate.
func (l *Leaf) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return &l.valid().tls, nil
}

// valid returns the newest version, which it renews if it is not valid now. If that fails it returns the old version, and
// the next attempt is after firstRetry at the earliest.
func (l *Leaf) valid() *pair {
	p, a := l.current.Load(), l.authority
	if p.validAt(a.cfg.Now()) {
		return p
	}
	switch did, err := a.renewNow(l); {
	case err != nil:
		a.cfg.Logger.Error("cannot renew a certificate that is not valid now; it stays in use", "file", l.path, "err", err, "again_in", firstRetry)
	case did:
		a.cfg.Logger.Info("a certificate was not valid by the clock; it was renewed", "file", l.path, "until", l.Certificate().NotAfter)
	}
	return l.current.Load()
}

// Certificate returns the parsed newest version.
func (l *Leaf) Certificate() *x509.Certificate { return l.current.Load().cert }

func (l *Leaf) usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.req.Usage
}

// CertPEM returns the newest certificate.
func (l *Leaf) CertPEM() []byte { return l.current.Load().certPEM }

// KeyPEM returns the newest private key.
func (l *Leaf) KeyPEM() []byte { return l.current.Load().keyPEM }

// Path is the file with certificate and key.
func (l *Leaf) Path() string { return l.path }

// Leaf returns the leaf certificate from disk if it matches the request and is not due, else a new one.
func (a *Authority) Leaf(r Request) (*Leaf, error) {
	l, err := a.openLeaf(r)
	if err != nil {
		return nil, err
	}
	return l, a.settle()
}

func (a *Authority) openLeaf(r Request) (*Leaf, error) {
	if r.File == "" || strings.ContainsAny(r.File, "/\x00") {
		return nil, fmt.Errorf("pki: %q cannot name a certificate file", r.File)
	}
	r.IPs = distinctIPs(r.IPs)
	r.Names = distinct(r.Names)
	a.mu.Lock()
	l := a.leaves[r.File]
	if l == nil {
		l = &Leaf{authority: a, path: a.path(r.File + ".pem")}
		a.leaves[r.File] = l
	}
	a.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := readPair(l.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("pki: %w", err)
	case a.fits(p, r):
		l.req = r
		a.publish(l, p)
		return l, nil
	}
	return l, a.issueInto(l, r)
}

// renew renews a leaf that is due or not valid yet, and reports whether it did.
func (a *Authority) renew(l *Leaf) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.current.Load(); p == nil || !a.wants(p, l.req.Usage) {
		return false, nil // nil: making it failed, and the caller of Leaf got the error
	}
	err := a.issueInto(l, l.req)
	return err == nil, err
}

// renewNow is renew for a handshake. After a failure it does nothing for firstRetry. The new certificate is durable when it
// returns.
func (a *Authority) renewNow(l *Leaf) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.current.Load(); p.validAt(a.cfg.Now()) || !a.wants(p, l.req.Usage) || time.Now().Before(l.retry) {
		return false, nil
	}
	err := a.issueInto(l, l.req)
	if err == nil {
		err = a.settle()
	}
	if err != nil {
		l.retry = time.Now().Add(firstRetry)
	}
	return err == nil, err
}

// wants reports whether a new certificate would be better than p: valid longer or sooner, or signed by a newer CA.
func (a *Authority) wants(p *pair, u Usage) bool {
	now, ca := a.cfg.Now(), a.signerOf(u).cert
	if now.Before(ca.NotBefore) || now.After(ca.NotAfter) {
		return false // a new certificate would not be valid either
	}
	return p.due(now) || now.Before(p.cert.NotBefore) || p.cert.CheckSignatureFrom(ca) != nil
}

// fits reports whether p is signed by the current CA, has the requested names, and is not due.
func (a *Authority) fits(p *pair, r Request) bool {
	now := a.cfg.Now()
	if p.due(now) || now.Before(p.cert.NotBefore) || p.cert.CheckSignatureFrom(a.signerOf(r.Usage).cert) != nil {
		return false
	}
	if p.cert.Subject.CommonName != r.CommonName || !slices.Equal(p.cert.Subject.Organization, r.Organization) {
		return false
	}
	if r.Usage == Peer && len(p.cert.ExtKeyUsage) != 2 {
		return false
	}
	for _, n := range r.Names {
		if !slices.Contains(p.cert.DNSNames, n) {
			return false
		}
	}
	for _, ip := range r.IPs {
		if !slices.ContainsFunc(p.cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

func (a *Authority) signerOf(u Usage) *caPair {
	if u == FrontProxy {
		return a.front
	}
	return a.keys.Load().ca
}

// issueInto issues a leaf; the caller holds l.mu.
func (a *Authority) issueInto(l *Leaf, r Request) error {
	p, err := a.signerOf(r.Usage).issue(r, a.cfg.Now())
	if err != nil {
		return fmt.Errorf("pki: make %s: %w", r.File, err)
	}
	if err := atomicfile.WriteContent(l.path, bytes.Join([][]byte{p.certPEM, p.keyPEM}, nil)); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	a.wrote.Store(true)
	l.req = r
	a.publish(l, p)
	return nil
}

// publish makes p the current certificate of l. A server also sends its CA, so that a joining machine that knows only the
// CA's pin can verify it, and the links from older CAs.
func (a *Authority) publish(l *Leaf, p *pair) {
	if l.req.Usage == Server || l.req.Usage == Peer {
		p.tls.Certificate = append(p.tls.Certificate[:1:1], a.keys.Load().chain()...)
	}
	l.current.Store(p)
	a.announce()
}

// pair is a certificate and its key, parsed and PEM.
type pair struct {
	cert            *x509.Certificate
	certPEM, keyPEM []byte
	tls             tls.Certificate
}

// validAt reports whether the certificate is valid at the time now.
func (p *pair) validAt(now time.Time) bool {
	return !now.Before(p.cert.NotBefore) && !now.After(p.cert.NotAfter)
}

// due reports whether less than a third of the certificate's life is left.
func (p *pair) due(now time.Time) bool {
	life := p.cert.NotAfter.Sub(p.cert.NotBefore)
	return now.After(p.cert.NotAfter.Add(-life / 3))
}

func distinct(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(s string) bool { return s == "" })
}

func distinctIPs(in []net.IP) []net.IP {
	var out []net.IP
	for _, ip := range in {
		if ip != nil && !slices.ContainsFunc(out, ip.Equal) {
			out = append(out, ip)
		}
	}
	return out
}
