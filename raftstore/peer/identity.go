package peer

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

// The names in a server's certificate.
const (
	// Organization is in every server's certificate and in no other certificate.
	Organization = "balsa:servers"
	namePrefix   = "balsa:server:"
	domain       = ".server.balsa"
	idDigits     = 32
)

// CommonName returns the common name of a server's certificate.
func CommonName(serverID string) string { return namePrefix + serverID }

// ServerName returns the DNS name in a server's certificate. Peers verify this name and never an address, so a server may move.
func ServerName(serverID string) string { return serverID + domain }

// isID reports whether s has the form of a server's or a cluster's ID.
func isID(s string) bool {
	return len(s) == idDigits && strings.Trim(s, "0123456789abcdef") == ""
}

// identify returns the ID of the server that a verified leaf certificate names.
func identify(leaf *x509.Certificate) (string, error) {
	id, ok := strings.CutPrefix(leaf.Subject.CommonName, namePrefix)
	if !ok || !isID(id) || !slices.Contains(leaf.Subject.Organization, Organization) {
		return "", fmt.Errorf("%w: certificate of %q, %q is not a server's", ErrIdentity, leaf.Subject.CommonName, leaf.Subject.Organization)
	}
	return id, nil
}

// remote returns the ID and the certificate of the server at the other end of a connection, whose handshake must be done.
func remote(state tls.ConnectionState) (string, *x509.Certificate, error) {
	if len(state.VerifiedChains) == 0 {
		return "", nil, fmt.Errorf("%w: no verified certificate", ErrIdentity)
	}
	leaf := state.VerifiedChains[0][0]
	id, err := identify(leaf)
	return id, leaf, err
}
