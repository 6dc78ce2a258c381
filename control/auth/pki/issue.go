package pki

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// IssuerConfig configures an Issuer.
type IssuerConfig struct {
	// CertFile and KeyFile hold a certificate authority, PEM, that signs clients' certificates instead of the cluster's.
	// They are read for each signature, so they may be replaced at any time.
	CertFile, KeyFile string
}

// Validate reports every fault at once, including faults of the files.
func (c IssuerConfig) Validate() error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("pki: a certificate authority needs both files, of its certificate and of its key")
	}
	if c.CertFile == "" {
		return nil
	}
	_, err := (&Issuer{cfg: c}).fromFiles()
	return err
}

// Issuer signs certificates for clients outside the cluster's own machines: approved CertificateSigningRequests. It is safe
// for concurrent use.
type Issuer struct {
	cfg       IssuerConfig
	authority *Authority

	mu   sync.Mutex // guards last and read
	last *caPair
	read []byte // the bytes from which last was parsed
}

// Issuer returns an Issuer. It reads the files of cfg once to check them.
func (a *Authority) Issuer(cfg IssuerConfig) (*Issuer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Issuer{cfg: cfg, authority: a}, nil
}

// Sign returns a certificate, PEM, with the template's subject, public key, alternative names, usages and times. It never
// outlives the signing certificate and is never a CA. A certificate that would let its holder impersonate a server, an
// administrator or another node is refused with ErrBadRequest: see Authority.Reserve.
//
// Serving certificates are always signed by the cluster's CA, with which servers verify kubelets.
func (i *Issuer) Sign(template *x509.Certificate) (certPEM []byte, err error) {
	if err := i.authority.reserved(template); err != nil {
		return nil, err
	}
	if err := i.authority.onRecord(template); err != nil {
		return nil, err
	}
	ca := i.authority.keys.Load().ca
	if i.cfg.CertFile != "" && !serves(template) {
		if ca, err = i.fromFiles(); err != nil {
			return nil, err
		}
	}
	now := i.authority.cfg.Now()
	if now.Before(ca.cert.NotBefore) || !now.Before(ca.cert.NotAfter) {
		return nil, fmt.Errorf("pki: the certificate authority %q is valid from %s to %s, not now", ca.cert.Subject.CommonName, ca.cert.NotBefore, ca.cert.NotAfter)
	}
	_, certPEM, err = sign(&x509.Certificate{
		SerialNumber: serial(), Subject: template.Subject,
		DNSNames: template.DNSNames, IPAddresses: template.IPAddresses, EmailAddresses: template.EmailAddresses, URIs: template.URIs,
		NotBefore: later(template.NotBefore, ca.cert.NotBefore).UTC(), NotAfter: earlier(template.NotAfter, ca.cert.NotAfter).UTC(),
		KeyUsage: template.KeyUsage, ExtKeyUsage: template.ExtKeyUsage, BasicConstraintsValid: true,
	}, ca.cert, template.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("pki: sign for %q: %w", template.Subject.CommonName, err)
	}
	return certPEM, nil
}

// serves reports whether a certificate is valid for servers. One without extended usages is valid for all purposes.
func serves(c *x509.Certificate) bool {
	return len(c.ExtKeyUsage) == 0 || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// fromFiles returns the CA in the files. While an administrator replaces the files they may not match; that is an error,
// and the client tries again.
func (i *Issuer) fromFiles() (*caPair, error) {
	cert, err := os.ReadFile(i.cfg.CertFile)
	if err != nil {
		return nil, fmt.Errorf("pki: certificate authority: %w", err)
	}
	key, err := os.ReadFile(i.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("pki: key of the certificate authority: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := slices.Concat(cert, []byte{0}, key)
	if i.last != nil && bytes.Equal(now, i.read) {
		return i.last, nil
	}
	t, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("pki: %s and %s: %v: %w", i.cfg.CertFile, i.cfg.KeyFile, err, ErrDamaged)
	}
	signer, ok := t.PrivateKey.(crypto.Signer)
	if !ok || !t.Leaf.IsCA {
		return nil, fmt.Errorf("pki: %s: the certificate is not a CA: %w", i.cfg.CertFile, ErrDamaged)
	}
	i.last, i.read = &caPair{cert: t.Leaf, key: signer, pool: poolOf(t.Leaf)}, now
	return i.last, nil
}
