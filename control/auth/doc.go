// Package auth owns nothing but the order of its sub-packages: who somebody is (pki, authn), what he may do (authz,
// bootstrap), and what becomes of the object he sends (admission). All of them read the store's newest state through
// package live.
//
//	TLS ──▶ pki ──▶ authn ──▶ authz ──▶ admission ──▶ registry
//	                  │         │           │
//	                  └────── live ─────────┘◀── the store's root
package auth
