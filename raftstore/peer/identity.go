package peer

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

// What a server's certificate says.
const (
	// Organization is in every server's certificate, and in no other.
	Organization = "balsa:servers"
	namePrefix   = "balsa:server:"
	domain       = ".server.balsa"
	idDigits     = 32
)

// CommonName is the subject of a server's certificate.
func CommonName(serverID string) string { return namePrefix + serverID }

// ServerName is the DNS name in a server's certificate. Peers verify it, never
// an address, so a server may move.
func ServerName(serverID string) string { return serverID + domain }

// isID tells whether s has the form of a server's or a cluster's identity.
func isID(s string) bool {
	return len(s) == idDigits && strings.Trim(s, "0123456789abcdef") == ""
}

// identify is the server that a verified leaf certificate stands for.
func identify(leaf *x509.Certificate) (string, error) {
	id, ok := strings.CutPrefix(leaf.Subject.CommonName, namePrefix)
	if !ok || !isID(id) || !slices.Contains(leaf.Subject.Organization, Organization) {
		return "", fmt.Errorf("%w: certificate of %q, %q is not a server's", ErrIdentity, leaf.Subject.CommonName, leaf.Subject.Organization)
	}
	return id, nil
}

// remote is the server at the other end of a connection whose handshake is done
// and whose certificate was verified.
func remote(state tls.ConnectionState) (string, *x509.Certificate, error) {
	if len(state.VerifiedChains) == 0 {
		return "", nil, fmt.Errorf("%w: no verified certificate", ErrIdentity)
	}
	leaf := state.VerifiedChains[0][0]
	id, err := identify(leaf)
	return id, leaf, err
}
