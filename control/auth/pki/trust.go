package pki

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/util/filesystem"
)

const (
	maxTrust  = 1 << 20
	trustLook = time.Minute // how often a file is read if the kernel reports no changes
)

// Trust is a file of certificate authorities whose clients the API accepts, in addition to the cluster's CA; no other part
// of the cluster trusts them. Changes of the file take effect, unless they are invalid. It is safe for concurrent use.
type Trust struct {
	path    string
	log     *slog.Logger
	current atomic.Pointer[trusted]
	judged  []byte // the last content read; only Run's goroutine uses it
}

type trusted struct {
	pool         *x509.CertPool
	certificates []*x509.Certificate
}

// OpenTrust reads the file, PEM. log may be nil.
func OpenTrust(path string, log *slog.Logger) (*Trust, error) {
	if log == nil {
		log = slog.Default()
	}
	t := &Trust{path: path, log: log}
	data, err := readTrust(path)
	if err != nil {
		return nil, err
	}
	t.judged = data
	first, err := parseTrust(path, data)
	t.current.Store(first)
	return t, err
}

// VerifyOptions is the function for k8s.io/apiserver's x509 authenticator.
func (t *Trust) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{Roots: t.current.Load().pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
}

// Certificates returns the current certificates. The caller must not change them.
func (t *Trust) Certificates() []*x509.Certificate { return t.current.Load().certificates }

// Run reloads the file when it changes, until ctx ends.
func (t *Trust) Run(ctx context.Context) error {
	filesystem.WatchUntil(ctx, trustLook, t.path, t.reload, func(err error) {
		t.log.Warn("cannot watch the file of clients' certificate authorities; it is read once a minute", "file", t.path, "err", err)
	})
	return nil
}

func (t *Trust) reload() {
	data, err := readTrust(t.path)
	if err != nil {
		t.log.Warn("cannot read the clients' certificate authorities; the former ones stay in use", "err", err)
		return
	}
	if bytes.Equal(data, t.judged) {
		return
	}
	t.judged = data // remember invalid content, so that it is reported once
	next, err := parseTrust(t.path, data)
	if err != nil {
		t.log.Error("the changed file of clients' certificate authorities is invalid; the former ones stay in use", "err", err)
		return
	}
	t.current.Store(next)
	t.log.Info("the clients' certificate authorities have changed", "file", t.path, "certificates", len(next.certificates))
}

func readTrust(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("pki: clients' certificate authorities: %w", err)
	} else if info.Size() > maxTrust {
		return nil, fmt.Errorf("pki: clients' certificate authorities: %s has more than 1 MiB", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("pki: clients' certificate authorities: %w", err)
	}
	return data, nil
}

var errNoCertificate = errors.New("no certificate in it: put PEM blocks CERTIFICATE there")

func parseTrust(path string, data []byte) (*trusted, error) {
	out := &trusted{pool: x509.NewCertPool()}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certBlock {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("pki: %s: certificate %d: %v: %w", path, len(out.certificates)+1, err, ErrDamaged)
		}
		if c.BasicConstraintsValid && !c.IsCA {
			return nil, fmt.Errorf("pki: %s: the certificate of %q is no authority's: %w", path, c.Subject, ErrDamaged)
		}
		out.certificates = append(out.certificates, c)
		out.pool.AddCert(c)
	}
	if len(out.certificates) == 0 {
		return nil, fmt.Errorf("pki: %s: %w: %w", path, errNoCertificate, ErrDamaged)
	}
	return out, nil
}
