package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	cliflag "k8s.io/component-base/cli/flag"
)

// TLS configures which versions and cipher suites of TLS clients may use at the API's port and at the kubelet's API. The
// names are upstream's. Servers and nodes always use TLS 1.3 between each other.
type TLS struct {
	CipherSuites []string
	MinVersion   string
}

// needed is the cipher suite that HTTP/2 requires for ECDSA keys, which the cluster's certificates have (RFC 9113, 9.2.2).
const needed = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"

func (t *TLS) validate() error {
	_, err := cliflag.TLSCipherSuites(t.CipherSuites)
	if err != nil {
		err = fmt.Errorf("--tls-cipher-suites: %w; give some of %s", err, strings.Join(cliflag.TLSCipherPossibleValues(), ", "))
	}
	version, err2 := cliflag.TLSVersion(t.MinVersion)
	if err2 != nil {
		err2 = fmt.Errorf("--tls-min-version: %w; give one of %s", err2, strings.Join(cliflag.TLSPossibleVersions(), ", "))
	}
	if err := errors.Join(err, err2); err != nil || len(t.CipherSuites) == 0 {
		return err
	}
	switch {
	case version == tls.VersionTLS13:
		return errors.New("--tls-cipher-suites has no effect with --tls-min-version VersionTLS13: leave it out")
	case !slices.Contains(t.CipherSuites, needed):
		return fmt.Errorf("--tls-cipher-suites %s: add %s, which HTTP/2 needs", strings.Join(t.CipherSuites, ","), needed)
	}
	return nil
}

// Policy returns the settings in the form of crypto/tls; suites is nil for Go's choice. Validate must have passed.
func (t *TLS) Policy() (version uint16, suites []uint16) {
	version, _ = cliflag.TLSVersion(t.MinVersion)
	suites, _ = cliflag.TLSCipherSuites(t.CipherSuites)
	return version, suites
}
