package certificates

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	capi "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
)

// Everything in this file is a function of values: what becomes of a request. Names, times and texts are those of
// upstream's csrapproving, csrsigning and csrcleaner.

// legacyUnknown is a signer that requests of v1 cannot name; what an older API kept may.
const legacyUnknown = "kubernetes.io/legacy-unknown"

// nodePrefix begins the names of users that are nodes.
const nodePrefix = "system:node:"

const (
	shortestLife = 10 * time.Minute
	backdate     = 5 * time.Minute // less than the shortest life
	shortLife    = 8 * time.Hour   // below it the end is not moved with the beginning

	weakestRSA, largestRSA = 2048, 8192 // bits

	firstAsk, lastAsk = time.Second, 1000 * time.Second

	keptDecided = time.Hour      // denied, failed, issued
	keptWaiting = 24 * time.Hour // for a decision, or for the signature of another signer
)

// approval is one way in which a request may be approved without people.
type approval struct{ subresource, message string }

// approvals are the ways for a request, in the order in which they are tried; none when it is decided, or not for us.
func approvals(csr *capi.CertificateSigningRequest) []approval {
	approved, denied := decided(csr)
	if approved || denied || len(csr.Status.Certificate) > 0 || csr.Spec.SignerName != capi.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	request, err := certificatesapi.ParseCSR(csr.Spec.Request)
	if err != nil || !certificatesapi.IsKubeletClientCSR(request, usageSet(csr.Spec.Usages)) {
		return nil
	}
	any := approval{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."}
	if csr.Spec.Username != request.Subject.CommonName {
		return []approval{any}
	}
	return []approval{{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."}, any}
}

// askAgain is how long to wait before it is asked again whether a request may be approved: as long as it has waited so
// far, within bounds.
func askAgain(csr *capi.CertificateSigningRequest, now time.Time) time.Duration {
	return min(max(now.Sub(csr.CreationTimestamp.Time), firstAsk), lastAsk)
}

func decided(csr *capi.CertificateSigningRequest) (approved, denied bool) {
	for _, c := range csr.Status.Conditions {
		approved = approved || c.Type == capi.CertificateApproved
		denied = denied || c.Type == capi.CertificateDenied
	}
	return approved, denied
}

func hasFailed(csr *capi.CertificateSigningRequest) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == capi.CertificateFailed && (c.Status == "" || c.Status == v1.ConditionTrue) {
			return true
		}
	}
	return false
}

// checks are the conditions of each signer, beside those of certificateFor for all.
var checks = map[string]func(*x509.CertificateRequest, []capi.KeyUsage) error{
	capi.KubeAPIServerClientSignerName: func(_ *x509.CertificateRequest, usages []capi.KeyUsage) error {
		return checkClientUsages(usages)
	},
	capi.KubeAPIServerClientKubeletSignerName: func(r *x509.CertificateRequest, usages []capi.KeyUsage) error {
		return certificatesapi.ValidateKubeletClientCSR(r, usageSet(usages))
	},
	capi.KubeletServingSignerName: func(r *x509.CertificateRequest, usages []capi.KeyUsage) error {
		return certificatesapi.ValidateKubeletServingCSR(r, usageSet(usages))
	},
	legacyUnknown: func(*x509.CertificateRequest, []capi.KeyUsage) error { return nil },
}

// toBeSigned tells whether a request is approved and not denied, not answered yet, and for one of our signers.
func toBeSigned(csr *capi.CertificateSigningRequest) bool {
	approved, denied := decided(csr)
	return approved && !denied && len(csr.Status.Certificate) == 0 && checks[csr.Spec.SignerName] != nil && !hasFailed(csr)
}

// certificateFor returns the certificate to sign for a request, or an error that says why none will ever be signed. Of the
// request's extensions only the alternative names are used, so a request for a certificate authority gets a certificate that is
// none.
func certificateFor(csr *capi.CertificateSigningRequest, longest time.Duration, now time.Time) (*x509.Certificate, error) {
	request, err := certificatesapi.ParseCSR(csr.Spec.Request)
	if err != nil {
		return nil, fmt.Errorf("unable to parse the request: %w", err)
	}
	if err := checkKey(request); err != nil {
		return nil, err
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request is not signed with the key it is for: %w", err)
	}
	if err := checks[csr.Spec.SignerName](request, csr.Spec.Usages); err != nil {
		return nil, err
	}
	if asks := csr.Spec.Username; strings.HasPrefix(asks, nodePrefix) && request.Subject.CommonName != asks {
		return nil, fmt.Errorf("%s asks for a certificate of %q: a node gets its own alone", asks, request.Subject.CommonName)
	}
	usage, extended, err := keyUsages(csr.Spec.Usages)
	if err != nil {
		return nil, err
	}
	begin, end := validity(csr.Spec.ExpirationSeconds, longest, now)
	return &x509.Certificate{
		Subject: request.Subject, PublicKey: request.PublicKey, PublicKeyAlgorithm: request.PublicKeyAlgorithm,
		DNSNames: request.DNSNames, IPAddresses: request.IPAddresses, EmailAddresses: request.EmailAddresses, URIs: request.URIs,
		NotBefore: begin, NotAfter: end, KeyUsage: usage, ExtKeyUsage: extended, BasicConstraintsValid: true,
	}, nil
}

// checkKey refuses keys that are too weak, and those that cost too much to check.
func checkKey(request *x509.CertificateRequest) error {
	switch key := request.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < weakestRSA || bits > largestRSA {
			return fmt.Errorf("an RSA key of %d bits: make one of %d to %d bits", bits, weakestRSA, largestRSA)
		}
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return fmt.Errorf("an ECDSA key on %s: make one on P-256, P-384 or P-521", key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return errors.New("a key of this kind is not signed for: make an ECDSA, Ed25519 or RSA key")
	}
	return nil
}

func checkClientUsages(usages []capi.KeyUsage) error {
	client := false
	for _, u := range usages {
		switch u {
		case capi.UsageDigitalSignature, capi.UsageKeyEncipherment: // may be there
		case capi.UsageClientAuth:
			client = true
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !client {
		return fmt.Errorf("missing required usage for client certificate: %s", capi.UsageClientAuth)
	}
	return nil
}

func usageSet(usages []capi.KeyUsage) sets.String {
	out := sets.NewString()
	for _, u := range usages {
		out.Insert(string(u))
	}
	return out
}

// validity is from when to when a certificate is valid.
func validity(asked *int32, longest time.Duration, now time.Time) (begin, end time.Time) {
	life := longest
	if asked != nil {
		life = min(max(time.Duration(*asked)*time.Second, shortestLife), longest)
	}
	begin, end = now.Add(-backdate), now.Add(life)
	if life >= shortLife {
		end = end.Add(-backdate)
	}
	return begin.UTC(), end.UTC()
}

func failed(why error, now time.Time) capi.CertificateSigningRequestCondition {
	return capi.CertificateSigningRequestCondition{
		Type: capi.CertificateFailed, Status: v1.ConditionTrue, Reason: "SignerValidationFailure", Message: why.Error(), LastUpdateTime: metav1.NewTime(now),
	}
}

// keptUntil is when a request may be deleted, if that can be said already.
func keptUntil(csr *capi.CertificateSigningRequest) (time.Time, bool) {
	var ends []time.Time
	after := func(since metav1.Time, d time.Duration) {
		if !since.IsZero() {
			ends = append(ends, since.Add(d))
		}
	}
	if len(csr.Status.Conditions) == 0 {
		after(csr.CreationTimestamp, keptWaiting)
	}
	for _, c := range csr.Status.Conditions {
		switch {
		case c.Type == capi.CertificateDenied, c.Type == capi.CertificateFailed:
			after(c.LastUpdateTime, keptDecided)
		case c.Type != capi.CertificateApproved:
		case len(csr.Status.Certificate) == 0:
			after(c.LastUpdateTime, keptWaiting)
		default:
			after(c.LastUpdateTime, keptDecided)
			if end, ok := endOf(csr.Status.Certificate); ok {
				ends = append(ends, end)
			}
		}
	}
	if len(ends) == 0 {
		return time.Time{}, false
	}
	first := ends[0]
	for _, end := range ends[1:] {
		if end.Before(first) {
			first = end
		}
	}
	return first, true
}

// endOf is the end of the first certificate of a PEM file.
func endOf(certificate []byte) (time.Time, bool) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return time.Time{}, false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return c.NotAfter, true
}
