// Package auth has no code. It documents the order of its sub-packages: they authenticate the client (pki, authn),
// authorize the request (authz, bootstrap), and admit or change its object (admission). All of them read the store's
// newest state through package listers.
//
//	TLS ──▶ pki ──▶ authn ──▶ authz ──▶ admission ──▶ registry
//	                  │         │           │
//	                  └──── listers ──────┘◀── the store's root
package auth
