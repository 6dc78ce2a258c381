package signing

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/leader/certificates"
)

// Authority returns the authority for leader/certificates. It signs with issuer. Certificates are valid for longest at most;
// 0 means certificates.DefaultLife.
func Authority(issuer *pki.Issuer, longest time.Duration) certificates.Authority {
	return certificates.Authority{Life: longest, Sign: func(template *x509.Certificate) ([]byte, error) {
		signed, err := issuer.Sign(template)
		if errors.Is(err, pki.ErrBadRequest) {
			return nil, fmt.Errorf("%w: %w", certificates.ErrRefused, err)
		}
		return signed, err
	}}
}
