// Package signing owns the joint between who decides what is signed and who has the key: leader/certificates knows
// requests and no key, control/auth/pki the key and no request.
//
//	leader/certificates ── template ──▶ Authority ──▶ pki.Issuer ──▶ certificate, or why never
//
// It has no goroutines and no locks.
package signing
