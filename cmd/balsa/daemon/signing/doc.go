// Package signing joins the controller that decides which CertificateSigningRequests are signed (leader/certificates), which
// has no key, with the authority that has the key (control/auth/pki), which knows no requests.
//
//	leader/certificates ── template ──▶ Authority ──▶ pki.Issuer ──▶ certificate, or why it is refused for good
//
// It has no goroutines and no locks.
package signing
