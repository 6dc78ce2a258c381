package join

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/balsahq/balsa/control/atomicfile"
	"github.com/balsahq/balsa/control/auth/pki"
)

// maxTrusted bounds the CAs that an agent trusts at once; a rotation has two.
const maxTrusted = 8

// Trust is the CAs that an agent trusts: in ca.crt below its directory, and in memory the newest. Safe for concurrent use.
type Trust struct {
	path    string
	mu      sync.Mutex // held while the file is written
	current atomic.Pointer[trusted]
}

type trusted struct {
	pem   []byte
	certs []*x509.Certificate
	pool  *x509.CertPool
}

// OpenTrust reads what Join kept in dir.
func OpenTrust(dir string) (*Trust, error) {
	t := &Trust{path: CAFile(dir)}
	data, err := os.ReadFile(t.path)
	if err != nil {
		return nil, err
	}
	first, err := parseTrusted(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	t.current.Store(first)
	return t, nil
}

func parseTrusted(data []byte) (*trusted, error) {
	out := &trusted{pem: data, pool: x509.NewCertPool()}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !c.IsCA || len(out.certs) == maxTrusted {
			return nil, fmt.Errorf("want the certificates of at most %d CAs: %w", maxTrusted, pki.ErrDamaged)
		}
		out.certs = append(out.certs, c)
		out.pool.AddCert(c)
	}
	if len(out.certs) == 0 {
		return nil, fmt.Errorf("no CA in it: %w", pki.ErrDamaged)
	}
	return out, nil
}

// Pool returns the CAs that are trusted now. Call it for each handshake, since a rotation changes them.
func (t *Trust) Pool() *x509.CertPool { return t.current.Load().pool.Clone() }

// Pins returns the pins of the trusted CAs.
func (t *Trust) Pins() (pins []string) {
	for _, c := range t.current.Load().certs {
		pins = append(pins, pki.Pin(c.Raw))
	}
	return pins
}

// Update replaces the CAs, on disk first, and reports whether that changed something.
func (t *Trust) Update(data []byte) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(data) == 0 || bytes.Equal(data, t.current.Load().pem) {
		return false, nil
	}
	next, err := parseTrusted(data)
	if err != nil {
		return false, fmt.Errorf("the servers' list of CAs: %w", err)
	}
	if err := atomicfile.Write(t.path, data); err != nil {
		return false, err
	}
	t.current.Store(next)
	return true, nil
}

// issuer is the pin of the trusted CA that signed all of the certificates; empty when there is none.
func (t *Trust) issuer(certs ...*x509.Certificate) string {
next:
	for _, ca := range t.current.Load().certs {
		for _, c := range certs {
			if c == nil || c.CheckSignatureFrom(ca) != nil {
				continue next
			}
		}
		return pki.Pin(ca.Raw)
	}
	return ""
}

// unknownCA says what to do when a server's CA is not known here, not even through links.
func unknownCA(err error) error {
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		return err
	}
	return fmt.Errorf("%w: these are servers of another cluster, or the CA was rotated more than %d times since this machine was last connected; then `balsa members remove` this machine on a server, empty its directory here and join with a new token", err, pki.MaxLinks)
}
