package auth_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/controltest"
)

// elsewhere returns another cluster's CA.
func elsewhere(t *testing.T, now time.Time) *pki.Authority {
	t.Helper()
	a, err := pki.Open(pki.Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leaf(t *testing.T, a *pki.Authority, r pki.Request) *tls.Certificate {
	t.Helper()
	l, err := a.Leaf(r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const review = `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`

// shows returns the server's answer to a whoami request with a certificate.
func shows(t *testing.T, s *controltest.Server, c *tls.Certificate) (code int, body string) {
	t.Helper()
	return s.Ask(t, s.HTTP(c), "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", http.Header{"Content-Type": {"application/json"}}, strings.NewReader(review))
}

func TestClientsOfAnotherAuthority(t *testing.T) {
	other, unknown, old := elsewhere(t, time.Now()), elsewhere(t, time.Now()), elsewhere(t, time.Now().Add(-2*pki.LeafLifetime))
	file := filepath.Join(t.TempDir(), "clients.crt")
	if err := os.WriteFile(file, append(other.CA(), old.CA()...), 0o600); err != nil {
		t.Fatal(err)
	}
	trust, err := pki.OpenTrust(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := controltest.Start(t, func(c *control.Config) { c.ClientCAs = trust })
	jane := pki.Request{File: "jane", CommonName: "jane", Organization: []string{"devs"}, Usage: pki.Client}
	serves := jane
	serves.File, serves.Usage = "serves", pki.Server
	if code, body := shows(t, s, leaf(t, other, jane)); code != 201 || !strings.Contains(body, `"username":"jane"`) || !strings.Contains(body, `"devs"`) {
		t.Errorf("%d %s", code, body)
	}
	if code, body := shows(t, s, leaf(t, s.PKI, jane)); code != 201 || !strings.Contains(body, `"username":"jane"`) {
		t.Errorf("the cluster's own: %d %s", code, body)
	}
	for what, c := range map[string]*tls.Certificate{
		"nobody's authority": leaf(t, unknown, jane), "its time is over": leaf(t, old, jane), "made to serve": leaf(t, other, serves),
	} {
		if code, body := shows(t, s, c); code != 401 {
			t.Errorf("%s: %d %s", what, code, body)
		}
	}
	forged := http.Header{"Content-Type": {"application/json"}, "X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
	proxy := leaf(t, other, pki.Request{File: "proxy", CommonName: "front-proxy-client", Usage: pki.Client})
	if code, body := s.Ask(t, s.HTTP(proxy), "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", forged, strings.NewReader(review)); strings.Contains(body, `"admin"`) {
		t.Errorf("another authority's client is believed as a proxy: %d %s", code, body)
	}
}

func TestACertificateWhoseHolderWasRemovedIsRefusedAtOnce(t *testing.T) {
	var removed atomic.Bool
	s := controltest.Start(t, func(c *control.Config) {
		c.RefuseClient = func(c *x509.Certificate) error {
			if removed.Load() && c.Subject.CommonName == "system:node:gone" {
				return errors.New("removed")
			}
			return nil
		}
	})
	node := func(name string) *tls.Certificate {
		l, err := s.PKI.NodeClient(name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	gone, stays := node("gone"), node("stays")
	for range 2 { // the second time with a cached verification
		if code, body := shows(t, s, gone); code != 201 {
			t.Fatalf("%d %s", code, body)
		}
	}
	removed.Store(true)
	if code, body := shows(t, s, gone); code != 401 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := shows(t, s, stays); code != 201 {
		t.Errorf("%d %s", code, body)
	}
}
