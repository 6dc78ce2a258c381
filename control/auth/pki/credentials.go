package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balsahq/balsa/control/atomicfile"
)

const (
	firstRetry = 5 * time.Second
	lastRetry  = 10 * time.Minute
	// lastRetryInvalid bounds the pause while the certificate is not valid, because the node is cut off until the renewal.
	lastRetryInvalid = 30 * time.Second
)

// ErrForeignCertificate means that a certificate does not belong to a key of this machine, or is not valid now.
var ErrForeignCertificate = errors.New("the certificate does not fit")

// CredentialsConfig configures Credentials.
type CredentialsConfig struct {
	// Path is the .pem file of certificate and key. Path + ".new" holds the key of a request without an answer.
	Path string
	// Now defaults to time.Now.
	Now func() time.Time
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Credentials are a key made on this machine and the certificate that a server signed for it: in one file, and in memory as
// the newest version. They are safe for concurrent use; readers take no lock.
type Credentials struct {
	cfg      CredentialsConfig
	current  atomic.Pointer[pair]
	mu       sync.Mutex // held while files are read or written
	changed  func()
	early    atomic.Bool   // the next Renew renews a certificate that is not due
	wake     chan struct{} // buffered, capacity 1: wakes Run to check the certificate
	failures atomic.Uint64 // renewals that failed
	failing  atomic.Bool   // the last renewal failed: Run tries again after its pause, and RenewSoon has no effect
}

// Notify sets fn, which is called after each Install that changed the certificate. Existing connections were made with the
// former certificate and are valid as long as that one is. Notify must be called before Run.
func (c *Credentials) Notify(fn func()) { c.changed = fn }

// OpenCredentials reads the file if it exists. A damaged file is ErrDamaged.
func OpenCredentials(cfg CredentialsConfig) (*Credentials, error) {
	if cfg.Path == "" {
		return nil, errors.New("pki: CredentialsConfig.Path must be set")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &Credentials{cfg: cfg, wake: make(chan struct{}, 1)}
	p, err := readPair(cfg.Path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("pki: %w", err)
	}
	c.current.Store(p)
	return c, nil
}

// Certificate returns the newest certificate, nil if there is none.
func (c *Credentials) Certificate() *x509.Certificate {
	if p := c.current.Load(); p != nil {
		return p.cert
	}
	return nil
}

// Failures counts the renewals that have failed since the start.
func (c *Credentials) Failures() uint64 { return c.failures.Load() }

// Valid reports whether there is a certificate that is valid now.
func (c *Credentials) Valid() bool {
	p := c.current.Load()
	return p != nil && p.validAt(c.cfg.Now())
}

// Path returns the path of the file of certificate and key.
func (c *Credentials) Path() string { return c.cfg.Path }

// PEM returns the newest certificate and key, nil when there are none.
func (c *Credentials) PEM() (cert, key []byte) {
	if p := c.current.Load(); p != nil {
		return p.certPEM, p.keyPEM
	}
	return nil, nil
}

// newest returns the newest certificate for a handshake. If it is not valid by the wall clock it is still returned, and Run
// is woken to renew it.
func (c *Credentials) newest() *pair {
	p := c.current.Load()
	if p != nil && !c.failing.Load() && !p.validAt(c.cfg.Now()) {
		c.Wake()
	}
	return p
}

// GetCertificate is the function for a server's tls.Config.
func (c *Credentials) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p := c.newest()
	if p == nil {
		return nil, fmt.Errorf("pki: no certificate in %s yet", c.cfg.Path)
	}
	return &p.tls, nil
}

// GetClientCertificate is the function for a client's tls.Config. Without a certificate the client sends none.
func (c *Credentials) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if p := c.newest(); p != nil {
		return &p.tls, nil
	}
	return &tls.Certificate{}, nil
}

// Request returns a certificate request in PEM for a new key. The key is on disk before Request returns and stays the same
// until Install, so that a repetition after a crash asks for the same key.
func (c *Credentials) Request() (csrPEM []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, _, err := c.pendingKey(true)
	if err != nil {
		return nil, err
	}
	return NewCSR(key)
}

// RequestAgain returns a request for the key of the current certificate, which proves that the request is from the same
// machine. Without a certificate it is Request.
func (c *Credentials) RequestAgain() (csrPEM []byte, err error) {
	if p := c.current.Load(); p != nil {
		if key, ok := p.tls.PrivateKey.(crypto.Signer); ok {
			return NewCSR(key)
		}
	}
	return c.Request()
}

// Prove returns the newest certificate and a signature of digest by its key. An agent whose certificate has expired proves
// its identity this way, because TLS handshakes refuse that certificate.
func (c *Credentials) Prove(digest [sha256.Size]byte) (certPEM, signature []byte, err error) {
	p := c.current.Load()
	if p == nil {
		return nil, nil, fmt.Errorf("pki: no certificate in %s yet", c.cfg.Path)
	}
	key, ok := p.tls.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("pki: the key in %s cannot sign", c.cfg.Path)
	}
	signature, err = key.Sign(rand.Reader, digest[:], crypto.SHA256)
	return p.certPEM, signature, err
}

// signedOnce reports whether a trusted or a retired CA of this cluster signed the certificate.
func (a *Authority) signedOnce(cert *x509.Certificate) bool {
	k := a.keys.Load()
	return slices.ContainsFunc(slices.Concat(k.trusted, k.retired), func(ca *x509.Certificate) bool { return cert.CheckSignatureFrom(ca) == nil })
}

// Holder verifies a signature that Credentials.Prove made and returns its certificate, which a current or retired CA of the
// cluster signed and which may have expired. The caller must check whether the certificate was revoked.
func (a *Authority) Holder(certPEM []byte, digest [sha256.Size]byte, signature []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != certBlock {
		return nil, fmt.Errorf("pki: no certificate to prove with: %w", ErrBadRequest)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("pki: the certificate to prove with: %v: %w", err, ErrBadRequest)
	}
	public, ok := cert.PublicKey.(*ecdsa.PublicKey)
	switch {
	case !a.signedOnce(cert):
		return nil, fmt.Errorf("pki: the certificate of %q is not of this cluster: %w", cert.Subject.CommonName, ErrBadRequest)
	case !ok || !ecdsa.VerifyASN1(public, digest[:], signature):
		return nil, fmt.Errorf("pki: the request is not signed with the key of %q: %w", cert.Subject.CommonName, ErrBadRequest)
	}
	return cert, nil
}

func (c *Credentials) pendingPath() string { return c.cfg.Path + ".new" }

func (c *Credentials) pendingKey(create bool) (crypto.Signer, []byte, error) {
	data, err := os.ReadFile(c.pendingPath())
	if errors.Is(err, os.ErrNotExist) && create {
		if err := os.MkdirAll(filepath.Dir(c.cfg.Path), 0o700); err != nil {
			return nil, nil, fmt.Errorf("pki: directory: %w", err)
		}
		key, data, err := newKeyPEM()
		if err == nil {
			err = atomicfile.WriteContent(c.pendingPath(), data)
		}
		if err == nil {
			err = atomicfile.SyncDir(filepath.Dir(c.cfg.Path))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("pki: make a key: %w", err)
		}
		return key, data, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	key, err := parseKey(c.pendingPath(), data)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	return key, data, nil
}

// Install stores a certificate for the key of the last Request or for the key in use, and makes it the newest. Installing
// the same certificate twice is no error.
func (c *Credentials) Install(certPEM []byte) error {
	if p := c.current.Load(); p != nil && bytes.Equal(bytes.TrimSpace(p.certPEM), bytes.TrimSpace(certPEM)) {
		return nil
	}
	if err := c.install(certPEM); err != nil {
		return err
	}
	if c.changed != nil {
		c.changed()
	}
	return nil
}

func (c *Credentials) install(certPEM []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	keyPEM, err := c.keyFor(certPEM)
	if err != nil {
		return err
	}
	data := bytes.Join([][]byte{certPEM, keyPEM}, nil)
	p, err := parsePair(c.cfg.Path, data)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := atomicfile.WriteContent(c.cfg.Path, data); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := atomicfile.SyncDir(filepath.Dir(c.cfg.Path)); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	c.current.Store(p)
	if err := os.Remove(c.pendingPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

// keyFor returns the private key of a certificate: the key in use or the key of the last request.
func (c *Credentials) keyFor(certPEM []byte) ([]byte, error) {
	if p := c.current.Load(); p != nil {
		if key, ok := p.tls.PrivateKey.(crypto.Signer); ok && fitsKey(certPEM, key, c.cfg.Now()) == nil {
			return p.keyPEM, nil
		}
	}
	key, keyPEM, err := c.pendingKey(false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("pki: the certificate is for another key: %w", ErrForeignCertificate)
	}
	if err != nil {
		return nil, err
	}
	return keyPEM, fitsKey(certPEM, key, c.cfg.Now())
}

func fitsKey(certPEM []byte, key crypto.Signer, now time.Time) error {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != certBlock {
		return fmt.Errorf("pki: no certificate in the answer: %w", ErrForeignCertificate)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("pki: %v: %w", err, ErrForeignCertificate)
	}
	public, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || !public.Equal(cert.PublicKey) {
		return fmt.Errorf("pki: the certificate is for another key: %w", ErrForeignCertificate)
	}
	if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return fmt.Errorf("pki: it is %s here, the certificate is valid from %s to %s: set the clock: %w", now.UTC().Format(time.RFC3339),
			cert.NotBefore.Format(time.RFC3339), cert.NotAfter.Format(time.RFC3339), ErrForeignCertificate)
	}
	return nil
}

// RenewFunc sends a request to a signer, authenticated by the certificate that is still valid.
type RenewFunc func(ctx context.Context, csrPEM []byte) (certPEM []byte, err error)

// Wake makes Run check the certificate now. It is for changes of the wall clock.
func (c *Credentials) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run renews the certificate when a third of its life is left, or when it is not valid yet, until ctx ends. It checks every
// hour and at each Wake. After a failure it tries again after a pause that grows from seconds to ten minutes, or to half a
// minute if the certificate is not valid now; the old certificate stays in use.
func (c *Credentials) Run(ctx context.Context, renew RenewFunc) error {
	pause := time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-c.wake:
		}
		did, err := c.Renew(ctx, renew)
		c.failing.Store(err != nil)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			longest := lastRetry
			if !c.Valid() {
				longest = lastRetryInvalid
			}
			pause = min(max(2*pause, firstRetry), longest)
			c.failures.Add(1)
			c.cfg.Logger.Error("cannot renew a certificate; the old one stays in use", "file", c.cfg.Path, "err", err, "again_in", pause)
			timer.Reset(pause + mathrand.N(pause/4))
			continue
		case did:
			c.cfg.Logger.Info("certificate renewed", "file", c.cfg.Path, "until", c.Certificate().NotAfter)
		}
		pause = 0
		timer.Reset(checkEvery)
	}
}

// Renew renews the certificate if it is due, or not valid yet, and reports whether it did.
func (c *Credentials) Renew(ctx context.Context, renew RenewFunc) (bool, error) {
	if p := c.current.Load(); p == nil || !p.due(c.cfg.Now()) && p.validAt(c.cfg.Now()) && !c.early.Load() {
		return false, nil
	}
	csr, err := c.Request()
	if err != nil {
		return false, err
	}
	cert, err := renew(ctx, csr)
	if err != nil {
		return false, err
	}
	c.early.Store(false)
	return true, c.Install(cert)
}

// RenewSoon is RenewEarly, and wakes Run, unless Run already waits to try again after a failure.
func (c *Credentials) RenewSoon() {
	c.RenewEarly()
	if !c.failing.Load() {
		c.Wake()
	}
}

// RenewEarly makes the next Renew renew the certificate although it is not due, because its names or its CA are out of
// date.
func (c *Credentials) RenewEarly() { c.early.Store(true) }
