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
	trustLook = time.Minute // how often a file is read when the kernel tells of no change
)

// Trust is a file of certificate authorities that the API believes beside the cluster's own, which nothing else of the
// cluster does. It is followed when it changes; a faulty change is not used. Safe for concurrent use.
type Trust struct {
	path    string
	log     *slog.Logger
	current atomic.Pointer[trusted]
	judged  []byte // what was read last; only Run's goroutine has it
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

// VerifyOptions is what k8s.io/apiserver's x509 authenticator asks for.
func (t *Trust) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{Roots: t.current.Load().pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
}

// Certificates are those of now, and not to be changed.
func (t *Trust) Certificates() []*x509.Certificate { return t.current.Load().certificates }

// Run follows the file until ctx ends.
func (t *Trust) Run(ctx context.Context) error {
	filesystem.WatchUntil(ctx, trustLook, t.path, t.reload, func(err error) {
		t.log.Warn("changes of the clients' certificate authorities are looked for once a minute", "file", t.path, "err", err)
	})
	return nil
}

func (t *Trust) reload() {
	data, err := readTrust(t.path)
	if err != nil {
		t.log.Warn("the clients' certificate authorities cannot be read and stay as they were", "err", err)
		return
	}
	if bytes.Equal(data, t.judged) {
		return
	}
	t.judged = data // it will not become better by itself
	next, err := parseTrust(t.path, data)
	if err != nil {
		t.log.Error("the changed certificate authorities of clients are not used", "err", err)
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
