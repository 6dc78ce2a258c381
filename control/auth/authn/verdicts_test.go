package authn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

func request(certificates ...*x509.Certificate) *http.Request {
	return &http.Request{Header: http.Header{}, TLS: &tls.ConnectionState{PeerCertificates: certificates}}
}

func certificate(content string, end time.Time) *x509.Certificate {
	return &x509.Certificate{Raw: []byte(content), NotAfter: end}
}

func TestVerdictsAreRememberedForAWhileAndNeverPastACertificate(t *testing.T) {
	begin := time.Now()
	now, asked := begin, 0
	v := remember(authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		asked++
		if string(r.TLS.PeerCertificates[0].Raw) == "bad" {
			return nil, false, errors.New("unknown authority")
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: string(r.TLS.PeerCertificates[0].Raw)}}, true, nil
	}), func() time.Time { return now })
	long, short := begin.Add(time.Hour), begin.Add(3*time.Second)
	for i, step := range []struct {
		after   time.Duration
		request *http.Request
		user    string // "" is a refusal
		asks    int
	}{
		{0, request(certificate("ann", long)), "ann", 1},
		{time.Second, request(certificate("ann", long)), "ann", 0},
		{time.Second, request(certificate("bob", long)), "bob", 1},
		{time.Second, request(certificate("ann", long), certificate("intermediate", long)), "ann", 1},
		{time.Second, request(certificate("bad", long)), "", 1},
		{time.Second, request(certificate("bad", long)), "", 1},
		{time.Second, request(certificate("brief", short)), "brief", 1},
		{4 * time.Second, request(certificate("brief", short)), "brief", 1},
		{11 * time.Second, request(certificate("ann", long)), "ann", 1},
		{11 * time.Second, &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate("bad", long)}}}, "", 1},
	} {
		now, asked = begin.Add(step.after), 0
		r, ok, _ := v.AuthenticateRequest(step.request)
		if ok != (step.user != "") || ok && r.User.GetName() != step.user || asked != step.asks {
			t.Errorf("step %d: got %v %v after %d verifications, want %q after %d", i, r, ok, asked, step.user, step.asks)
		}
	}
}

func TestVerdictsAreBounded(t *testing.T) {
	v := remember(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{}}, true, nil
	}), time.Now)
	for i := range 3 * maxVerdicts {
		if _, _, err := v.AuthenticateRequest(request(certificate(fmt.Sprint(i), time.Now().Add(time.Hour)))); err != nil {
			t.Fatal(err)
		}
	}
	if len(v.known) > maxVerdicts {
		t.Errorf("%d verdicts are kept", len(v.known))
	}
}
