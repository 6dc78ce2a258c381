package pki

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// PinLength is the length of a pin in hex digits: 128 bits, against a second preimage.
const PinLength = 32

// ErrPin means that the server does not belong to the pinned cluster. errors.As with *PinError gives both pins.
var ErrPin = errors.New("not the pinned cluster")

// PinError has the pin of the expected CA and of the CA that the server sent.
type PinError struct {
	Want string
	Got  string // the pin of the server's CA, empty if it sent none
	Why  string
}

// Error names both pins, never a token.
func (e *PinError) Error() string {
	got := e.Got
	if got == "" {
		got = "none"
	}
	return fmt.Sprintf("%s: the pinned CA is %s, the server sent %s", e.Why, e.Want, got)
}

// Unwrap makes errors.Is(err, ErrPin) hold.
func (e *PinError) Unwrap() error { return ErrPin }

// Pin returns the pin of a CA: the first 32 hex digits of the SHA-256 of its DER certificate.
func Pin(caDER []byte) string {
	sum := sha256.Sum256(caDER)
	return hex.EncodeToString(sum[:])[:PinLength]
}

// PinnedTo returns a function for tls.Config.VerifyPeerCertificate (with InsecureSkipVerify, because the dialled address
// need not be in the certificate). It accepts only a server's certificate signed by the CA of that pin, which the server
// sends too. A node's certificate of the same cluster is refused, because a node must not be able to act as a man in the
// middle. now may be nil.
func PinnedTo(pin string, now func() time.Time) func(raw [][]byte, _ [][]*x509.Certificate) error {
	if now == nil {
		now = time.Now
	}
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		_, err := verifyPinned(pin, raw, now())
		return err
	}
}

// PinnedCA returns the CA with that pin from a verified chain, as in tls.ConnectionState.PeerCertificates.
func PinnedCA(pin string, chain []*x509.Certificate) *x509.Certificate {
	for _, c := range chain {
		if c.IsCA && subtle.ConstantTimeCompare([]byte(Pin(c.Raw)), []byte(pin)) == 1 {
			return c
		}
	}
	return nil
}

func verifyPinned(pin string, raw [][]byte, now time.Time) (*x509.Certificate, error) {
	if len(raw) == 0 || len(raw) > 8 {
		return nil, &PinError{Want: pin, Why: "no usable certificate chain"}
	}
	chain := make([]*x509.Certificate, len(raw))
	shown := ""
	for i, der := range raw {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, &PinError{Want: pin, Got: shown, Why: "unreadable certificate"}
		}
		if chain[i] = c; c.IsCA {
			shown = Pin(der)
		}
	}
	ca := PinnedCA(pin, chain)
	if ca == nil {
		return nil, &PinError{Want: pin, Got: shown, Why: "this is a server of another cluster, or the cluster's CA was rotated after the token was made (then make a new one with `balsa token create`)"}
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: poolOf(ca), Intermediates: poolOf(chain[1:]...), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		return nil, &PinError{Want: pin, Got: shown, Why: err.Error()}
	}
	if chain[0].IsCA || !IsServers(chain[0]) {
		return nil, &PinError{Want: pin, Got: shown, Why: "the certificate shown is not a server's"}
	}
	return ca, nil
}
