package authn

import (
	stdx509 "crypto/x509"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
)

// certificates authenticates client certificates: those signed by the cluster's CA, unless their holder was removed,
// and those of the CAs that an administrator added.
func (c Config) certificates() authenticator.Request {
	own := authenticator.Request(remember(x509.NewDynamic(c.ClientVerify, x509.CommonNameUserConversion), time.Now))
	if c.Refuse != nil {
		own = unless{own, c.Refuse}
	}
	if c.OtherClientVerify == nil {
		return own
	}
	return requestunion.New(own, remember(x509.NewDynamic(c.OtherClientVerify, x509.CommonNameUserConversion), time.Now))
}

// unless asks refuse about a valid certificate at each request, so that a removal counts at once although verifications
// are cached.
type unless struct {
	authenticator.Request
	refuse func(*stdx509.Certificate) error
}

// AuthenticateRequest implements authenticator.Request.
func (u unless) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := u.Request.AuthenticateRequest(req)
	if ok && err == nil {
		if err := u.refuse(req.TLS.PeerCertificates[0]); err != nil {
			return nil, false, err
		}
	}
	return response, ok, err
}
