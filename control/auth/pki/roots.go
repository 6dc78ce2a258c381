package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/balsahq/balsa/control/atomicfile"
)

// TrustFile holds the keys that this server trusts in addition to ca.pem and service-account.key: during a rotation the
// other CA and the other public key, and links. It exists once the CA or the key was rotated.
const TrustFile = "trust-bundle.pem"

// MaxLinks is the number of rotations of the CA that an offline member may miss and still trust the cluster. Each link adds
// one certificate to every handshake.
const MaxLinks = 3

const publicBlock = "PUBLIC KEY"

// KeySet has the keys that all servers share and a rotation replaces. All fields are PEM.
type KeySet struct {
	// CA is the new signing certificate with its key, TokenKey the new private key that signs tokens. Nil keeps the current
	// one.
	CA, TokenKey []byte
	// Trusted are the trusted CAs, TokenKeys the public keys that verify tokens. The signing ones are always trusted.
	Trusted, TokenKeys []byte
	// Links are certificates of newer CAs, each signed by the CA before it. A client that knows only an older CA verifies a
	// server through them.
	Links []byte
	// Retired are CAs that are no longer trusted. Only Holder and the list for aggregated servers need them.
	Retired []byte
}

// keys are the keys that a rotation replaces, as one immutable value.
type keys struct {
	ca       *caPair // signs
	trusted  []*x509.Certificate
	links    []*x509.Certificate
	retired  []*x509.Certificate
	pool     *x509.CertPool // of trusted
	trustPEM []byte         // of trusted, the CA that signs first
	signer   crypto.Signer  // of tokens
	verify   []crypto.PublicKey
}

func newKeys(ca *caPair, signer crypto.Signer, others trustBundle) *keys {
	k := &keys{ca: ca, signer: signer, links: others.links, pool: x509.NewCertPool(), verify: []crypto.PublicKey{signer.Public()}}
	for _, c := range append([]*x509.Certificate{ca.cert}, others.trusted...) {
		if slices.ContainsFunc(k.trusted, c.Equal) {
			continue
		}
		k.trusted = append(k.trusted, c)
		k.pool.AddCert(c)
		k.trustPEM = append(k.trustPEM, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: c.Raw})...)
	}
	for _, key := range others.keys {
		if !slices.ContainsFunc(k.verify, func(have crypto.PublicKey) bool { return KeyID(have) == KeyID(key) }) {
			k.verify = append(k.verify, key)
		}
	}
	return k
}

// chain returns the certificates that a server sends after its own: its CA, the links to it, and the other trusted CAs, for
// joining machines whose token has the pin of one of these.
func (k *keys) chain() (raw [][]byte) {
	for _, c := range slices.Concat(k.trusted[:1], k.links, k.trusted[1:]) {
		raw = append(raw, c.Raw)
	}
	return raw
}

// trustBundle is the content of TrustFile.
type trustBundle struct {
	trusted, links []*x509.Certificate
	keys           []crypto.PublicKey
}

// parseTrustBundle parses TrustFile; path is only for error messages.
func parseTrustBundle(path string, data []byte) (out trustBundle, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case certBlock:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil || !c.IsCA {
				return out, fmt.Errorf("%s: a certificate in it is not of a CA: %w", path, ErrDamaged)
			}
			if c.CheckSignatureFrom(c) == nil {
				out.trusted = append(out.trusted, c)
			} else {
				out.links = append(out.links, c)
			}
		case publicBlock:
			key, err := x509.ParsePKIXPublicKey(block.Bytes)
			if err != nil {
				return out, fmt.Errorf("%s: %v: %w", path, err, ErrDamaged)
			}
			out.keys = append(out.keys, key)
		default:
			return out, fmt.Errorf("%s: a block %q does not belong there: %w", path, block.Type, ErrDamaged)
		}
	}
	return out, nil
}

// readTrustBundle reads TrustFile, which a cluster without rotations does not have.
func (a *Authority) readTrustBundle() (trustBundle, error) {
	data, err := os.ReadFile(a.path(TrustFile))
	if errors.Is(err, os.ErrNotExist) {
		return trustBundle{}, nil
	}
	if err != nil {
		return trustBundle{}, fmt.Errorf("pki: %w", err)
	}
	out, err := parseTrustBundle(a.path(TrustFile), data)
	if err != nil {
		return out, fmt.Errorf("pki: %w", err)
	}
	return out, nil
}

// UseKeys installs the keys of a rotation, on disk first, and then renews every certificate that another CA signed. A
// further call with the same keys repeats only the steps that failed. After a crash between two files the server trusts
// both CAs, or the next call completes the change without help from other servers.
func (a *Authority) UseKeys(set KeySet) error {
	if err := a.useKeys(set); err != nil {
		return err
	}
	renewed, err := a.Renew()
	if len(renewed) > 0 {
		a.cfg.Logger.Info("certificates are renewed by the new certificate authority", "files", renewed)
	}
	return err
}

func (a *Authority) useKeys(set KeySet) error {
	a.files.Lock()
	defer a.files.Unlock()
	others, err := parseTrustBundle("the rotation's record", slices.Concat(set.Trusted, set.Links, set.TokenKeys))
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	now := a.keys.Load()
	ca, signer := now.ca, now.signer
	if len(set.CA) > 0 {
		if ca, err = parseCA("the rotation's CA", set.CA); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	if len(set.TokenKey) > 0 {
		if signer, err = parseKey("the rotation's service-account key", set.TokenKey); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	next := newKeys(ca, signer, others)
	if next.retired, err = certificates(set.Retired); err != nil {
		return err
	}
	bundle := slices.Concat(set.Trusted, set.Links, set.TokenKeys)
	// After each of these files, this server trusts the CA that signed the certificates on its disk, or issues them again at
	// its next start.
	files := []sharedFile{{TrustFile, bundle}, {"ca.pem", set.CA}, {"service-account.key", set.TokenKey}, {"ca.crt", next.trustPEM}}
	if slices.ContainsFunc(now.trusted, func(c *x509.Certificate) bool { return !slices.ContainsFunc(next.trusted, c.Equal) }) {
		files = append(files[1:], files[0])
	}
	for _, f := range files {
		if err := a.replace(f.name, f.content); err != nil {
			return err
		}
	}
	a.keys.Store(next)
	a.republish()
	return nil
}

type sharedFile struct {
	name    string
	content []byte
}

// replace writes a file durably unless it has this content. Without content it removes TrustFile, and leaves other files.
func (a *Authority) replace(name string, content []byte) error {
	path := a.path(name)
	if len(content) == 0 {
		if name != TrustFile {
			return nil
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("pki: %w", err)
		}
		return nil
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
		return nil
	}
	write := atomicfile.WriteContent
	if filepath.Ext(name) == ".crt" {
		write = atomicfile.WriteCopy
	}
	if err := write(path, content); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := atomicfile.SyncDir(a.cfg.Dir); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

// republish updates the chain that is sent with every certificate.
func (a *Authority) republish() {
	for _, l := range a.allLeaves() {
		l.mu.Lock()
		if p := l.current.Load(); p != nil {
			copied := *p
			a.publish(l, &copied)
		}
		l.mu.Unlock()
	}
	a.announce()
}

func (a *Authority) allLeaves() []*Leaf {
	a.mu.Lock()
	defer a.mu.Unlock()
	leaves := make([]*Leaf, 0, len(a.leaves))
	for _, l := range a.leaves {
		leaves = append(leaves, l)
	}
	return leaves
}

// NewCA returns a new CA and its link, signed by the current CA. It stores nothing.
func (a *Authority) NewCA() (pair, cert, link []byte, err error) {
	now, last := a.cfg.Now(), a.keys.Load().ca
	// The name differs from the last CA's, because some clients find an issuer by its name alone.
	next, err := newCA("balsa-ca@"+strconv.FormatInt(now.Unix(), 10), now)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("pki: make a CA: %w", err)
	}
	template := *next.cert
	template.SerialNumber = serial()
	template.NotBefore, template.NotAfter = later(next.cert.NotBefore, last.cert.NotBefore), earlier(next.cert.NotAfter, last.cert.NotAfter)
	template.AuthorityKeyId = nil // CreateCertificate sets it to the signer's key ID
	der, err := x509.CreateCertificate(rand.Reader, &template, last.cert, next.key.Public(), last.key)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("pki: link a CA: %w", err)
	}
	return next.pem(), next.certPEM, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: der}), nil
}

// NewTokenKey returns a new key pair for service-account tokens in PEM. It stores nothing.
func NewTokenKey() (private, public []byte, err error) {
	key, private, err := newKeyPEM()
	if err == nil {
		public, err = publicPEM(key.Public())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pki: make a service-account key: %w", err)
	}
	return private, public, nil
}

func publicPEM(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicBlock, Bytes: der}), nil
}

// KeyID returns the ID of a public key in the header of its tokens, computed as upstream does.
func KeyID(key crypto.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// PublicKeyID returns the KeyID of a key in PEM; empty if there is none.
func PublicKeyID(publicPEM []byte) string {
	block, _ := pem.Decode(publicPEM)
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// PinOf returns the pin of the first certificate in PEM; empty if there is none.
func PinOf(certPEM []byte) string {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != certBlock {
		return ""
	}
	return Pin(block.Bytes)
}

// PinsOf returns the pins of all certificates in PEM.
func PinsOf(certsPEM []byte) (pins []string) {
	for block, rest := pem.Decode(certsPEM); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == certBlock {
			pins = append(pins, Pin(block.Bytes))
		}
	}
	return pins
}

func certificates(data []byte) (list []*x509.Certificate, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("pki: %v: %w", err, ErrDamaged)
		}
		list = append(list, c)
	}
	return list, nil
}

// Trusts returns the pins of the trusted CAs.
func (a *Authority) Trusts() (pins []string) {
	for _, c := range a.keys.Load().trusted {
		pins = append(pins, Pin(c.Raw))
	}
	return pins
}

// IssuedBy returns the pin of the CA that signed all of this server's certificates; empty if different CAs signed them.
func (a *Authority) IssuedBy() string {
	ca := a.keys.Load().ca.cert
	for _, l := range a.allLeaves() {
		if p := l.current.Load(); p == nil || l.usage() != FrontProxy && p.cert.CheckSignatureFrom(ca) != nil {
			return ""
		}
	}
	return Pin(ca.Raw)
}

// Links returns the certificates that lead from older CAs to the current one, in PEM.
func (a *Authority) Links() (list []byte) {
	for _, c := range a.keys.Load().links {
		list = append(list, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: c.Raw})...)
	}
	return list
}

// Retired returns the CAs of this cluster that are no longer trusted.
func (a *Authority) Retired() []*x509.Certificate { return a.keys.Load().retired }

// TokenKeys returns the public keys that verify tokens, the signing key first.
func (a *Authority) TokenKeys() []crypto.PublicKey { return slices.Clone(a.keys.Load().verify) }

// TokenKeyPEM returns the public key of the key that signs tokens.
func (a *Authority) TokenKeyPEM() ([]byte, error) { return publicPEM(a.keys.Load().signer.Public()) }

// TokenKeyIDs returns the IDs of TokenKeys.
func (a *Authority) TokenKeyIDs() (ids []string) {
	for _, key := range a.keys.Load().verify {
		ids = append(ids, KeyID(key))
	}
	return ids
}
