package authn

import (
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// How long, and for how many certificates, a verification is cached. So the removal of a CA takes effect after
// verdictAge at the latest.
const (
	verdictAge  = 10 * time.Second
	maxVerdicts = 1024
)

// verdicts caches the user of a client certificate for a short time: verifying the signature for each request of a
// connection costs a quarter of a read's CPU. Only acceptances are cached, and never beyond the expiry of any
// certificate in the chain.
type verdicts struct {
	verify authenticator.Request
	now    func() time.Time

	mu    sync.Mutex // guards known
	known map[[sha256.Size]byte]verdict
}

type verdict struct {
	response *authenticator.Response
	until    time.Time
}

func remember(verify authenticator.Request, now func() time.Time) *verdicts {
	return &verdicts{verify: verify, now: now, known: map[[sha256.Size]byte]verdict{}}
}

// AuthenticateRequest implements authenticator.Request.
func (v *verdicts) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return v.verify.AuthenticateRequest(req)
	}
	key, until := shown(req, v.now().Add(verdictAge))
	if r := v.recall(key); r != nil {
		return r, true, nil
	}
	response, ok, err := v.verify.AuthenticateRequest(req)
	if ok && err == nil {
		v.keep(key, verdict{response, until})
	}
	return response, ok, err
}

// shown returns a digest of all certificates of a request, and the earlier of until and their first expiry.
func shown(req *http.Request, until time.Time) ([sha256.Size]byte, time.Time) {
	sum := sha256.New()
	for _, c := range req.TLS.PeerCertificates {
		sum.Write(c.Raw) // DER contains its length, so two lists never give the same bytes
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	var key [sha256.Size]byte
	sum.Sum(key[:0])
	return key, until
}

func (v *verdicts) recall(key [sha256.Size]byte) *authenticator.Response {
	v.mu.Lock()
	defer v.mu.Unlock()
	known, ok := v.known[key]
	if !ok || v.now().After(known.until) {
		return nil
	}
	copied := *known.response
	return &copied
}

func (v *verdicts) keep(key [sha256.Size]byte, d verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.known) >= maxVerdicts {
		clear(v.known)
	}
	v.known[key] = d
}

// withHeader calls ask only if the request has one of the headers. Without them a front proxy names no user, and its
// certificate need not be verified.
func withHeader(names []string, ask authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		for _, name := range names {
			if req.Header.Get(name) != "" {
				return ask.AuthenticateRequest(req)
			}
		}
		return nil, false, nil
	})
}

// lenient treats credentials that do not verify as absent, so that the next authenticator is tried.
type lenient struct{ authenticator.Request }

// AuthenticateRequest implements authenticator.Request.
func (l lenient) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := l.Request.AuthenticateRequest(req)
	if err != nil {
		return nil, false, nil
	}
	return response, ok, nil
}
