package config

import (
	"errors"
	"time"

	"github.com/balsahq/balsa/control/auth/pki"
)

// Certificates configures which authorities the API trusts for clients' certificates
// beside the cluster's own, and how certificates that are requested at the API
// (CertificateSigningRequests) are signed. The flags are kube-apiserver's and
// kube-controller-manager's.
type Certificates struct {
	ClientCAFile string
	SigningCert  string
	SigningKey   string
	SigningLife  time.Duration
}

func (c *Certificates) validate() error {
	var errs []error
	if c.SigningCert != "" && c.ClientCAFile == "" {
		errs = append(errs, errors.New("--cluster-signing-cert-file needs --client-ca-file with the same certificate in it: else the API refuses the certificates that it signs"))
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
