package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"time"
)

const (
	certBlock = "CERTIFICATE"
	keyBlock  = "PRIVATE KEY"
	ecBlock   = "EC PRIVATE KEY"
)

type caPair struct {
	cert    *x509.Certificate
	key     crypto.Signer
	certPEM []byte
	keyPEM  []byte
	pool    *x509.CertPool
}

func (p *caPair) pem() []byte { return bytes.Join([][]byte{p.certPEM, p.keyPEM}, nil) }

func poolOf(certs ...*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

func newCA(cn string, now time.Time) (*caPair, error) {
	key, keyPEM, err := newKeyPEM()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: cn},
		NotBefore: now.Add(-Backdate).UTC(), NotAfter: now.Add(CALifetime).UTC(),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		IsCA:     true, BasicConstraintsValid: true, MaxPathLenZero: false,
	}
	cert, certPEM, err := sign(tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &caPair{cert: cert, key: key, certPEM: certPEM, keyPEM: keyPEM, pool: poolOf(cert)}, nil
}

// issue makes a leaf with a new key.
func (p *caPair) issue(r Request, now time.Time) (*pair, error) {
	key, keyPEM, err := newKeyPEM()
	if err != nil {
		return nil, err
	}
	cert, certPEM, err := sign(p.template(r, now), p.cert, key.Public(), p.key)
	if err != nil {
		return nil, err
	}
	t := tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
	return &pair{cert: cert, certPEM: certPEM, keyPEM: keyPEM, tls: t}, nil
}

// template returns the template of a leaf that p signs. A leaf never outlives its CA.
func (p *caPair) template(r Request, now time.Time) *x509.Certificate {
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	switch r.Usage {
	case Server:
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	case Peer:
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	return &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: r.CommonName, Organization: r.Organization},
		NotBefore: later(now.Add(-Backdate), p.cert.NotBefore).UTC(), NotAfter: earlier(now.Add(LeafLifetime), p.cert.NotAfter).UTC(),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usages,
		DNSNames: r.Names, IPAddresses: r.IPs, BasicConstraintsValid: true,
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func sign(tmpl, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, []byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, signer)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: der}), nil
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the program instead
	b[0] &= 0x7f
	b[15] |= 1
	return new(big.Int).SetBytes(b)
}

func newKeyPEM() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

func readCA(path string) (*caPair, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseCA(path, data)
}

// parseCA parses a CA's certificate and key; path is only for error messages.
func parseCA(path string, data []byte) (*caPair, error) {
	p, err := parsePair(path, data)
	if err != nil {
		return nil, err
	}
	if !p.cert.IsCA {
		return nil, fmt.Errorf("%s: the certificate is not a CA: %w", path, ErrDamaged)
	}
	if err := p.cert.CheckSignatureFrom(p.cert); err != nil {
		return nil, fmt.Errorf("%s: %v: %w", path, err, ErrDamaged)
	}
	signer, ok := p.tls.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: the key cannot sign: %w", path, ErrDamaged)
	}
	return &caPair{cert: p.cert, key: signer, certPEM: p.certPEM, keyPEM: p.keyPEM, pool: poolOf(p.cert)}, nil
}

// readPair reads a file of certificate and key. It returns os.ErrNotExist if there is none, and ErrDamaged if it cannot be
// parsed.
func readPair(path string) (*pair, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parsePair(path, data)
}

func parsePair(path string, data []byte) (*pair, error) {
	t, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %v: %w", path, err, ErrDamaged)
	}
	p := &pair{cert: t.Leaf, tls: t}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == certBlock {
			p.certPEM = append(p.certPEM, pem.EncodeToMemory(block)...)
		} else {
			p.keyPEM = append(p.keyPEM, pem.EncodeToMemory(block)...)
		}
	}
	return p, nil
}

func readKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseKey(path, data)
}

func parseKey(path string, data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil || (block.Type != keyBlock && block.Type != ecBlock) {
		return nil, fmt.Errorf("%s: no private key in it: %w", path, ErrDamaged)
	}
	if block.Type == ecBlock {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %v: %w", path, err, ErrDamaged)
		}
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %v: %w", path, err, ErrDamaged)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: the key cannot sign: %w", path, ErrDamaged)
	}
	return signer, nil
}
