package main

import (
	"crypto/x509"
	"errors"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/cmd/balsa/signing"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/leader/certificates"
)

// certificateConfig is whose certificates are believed and how those that were
// asked for at the API are signed. The flags are kube-apiserver's and
// kube-controller-manager's.
type certificateConfig struct {
	ClientCAFile string
	SigningCert  string
	SigningKey   string
	SigningLife  time.Duration
}

func (c *certificateConfig) bind(f *pflag.FlagSet) {
	f.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile, "file with certificate authorities beside the cluster's own whose clients are believed; followed when it changes")
	f.StringVar(&c.SigningCert, "cluster-signing-cert-file", c.SigningCert, "certificate authority that signs the clients' certificates asked for at the API, instead of the cluster's; the same on all servers, and in --client-ca-file; may be exchanged at any time")
	f.StringVar(&c.SigningKey, "cluster-signing-key-file", c.SigningKey, "its key")
	f.DurationVar(&c.SigningLife, "cluster-signing-duration", c.SigningLife, "the longest that certificates asked for at the API are valid")
}

func (c *certificateConfig) validate() error {
	var errs []error
	if c.SigningCert != "" && c.ClientCAFile == "" {
		errs = append(errs, errors.New("--cluster-signing-cert-file needs --client-ca-file with the same certificate in it: else nobody believes what it signs"))
	}
	if c.SigningLife < 10*time.Minute {
		errs = append(errs, errors.New("--cluster-signing-duration: give 10m or more"))
	}
	if err := (pki.IssuerConfig{CertFile: c.SigningCert, KeyFile: c.SigningKey}).Validate(); err != nil {
		errs = append(errs, errors.New("--cluster-signing-cert-file and --cluster-signing-key-file: "+err.Error()))
	}
	if c.ClientCAFile != "" {
		if _, err := pki.OpenTrust(c.ClientCAFile, nil); err != nil {
			errs = append(errs, errors.New("--client-ca-file: "+err.Error()))
		}
	}
	return errors.Join(errs...)
}

// openClientCAs reads whose clients the API believes beside the cluster's.
func (s *server) openClientCAs() error {
	file := s.cfg.API.Certificates.ClientCAFile
	if file == "" {
		return nil
	}
	var err error
	if s.clients, err = pki.OpenTrust(file, s.log); err != nil {
		return err
	}
	s.parts.start("clients' authorities", s.clients.Run)
	return nil
}

// clientHints are the authorities whose certificates REST's clients may show.
func (s *server) clientHints() *x509.CertPool {
	pool := s.pki.Pool()
	if s.clients != nil {
		for _, c := range s.clients.Certificates() {
			pool.AddCert(c)
		}
	}
	return pool
}

// signer signs what is approved at the API; nobody gets a certificate with the
// name or address of a server.
func (s *server) signer() (certificates.Authority, error) {
	services, err := prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return certificates.Authority{}, err
	}
	c := s.cfg.API.Certificates
	issuer, err := s.pki.Issuer(pki.IssuerConfig{CertFile: c.SigningCert, KeyFile: c.SigningKey, Networks: services, Hosts: func() []string {
		var hosts []string
		for _, rec := range cluster.Records(s.store.View()) {
			hosts = append(hosts, rec.Name)
			for _, addr := range rec.Addresses {
				if host, _, err := net.SplitHostPort(addr); err == nil {
					hosts = append(hosts, host)
				}
			}
		}
		return hosts
	}})
	if err != nil {
		return certificates.Authority{}, err
	}
	return signing.Authority(issuer, c.SigningLife), nil
}

// refuse says of a node's certificate that the node was removed.
func (s *server) refuse(c *x509.Certificate) error { return cluster.Revoked(s.store.View(), c) }
