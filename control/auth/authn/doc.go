// Package authn owns authentication: it turns a request into a user.
//
//	in-process identity ─┐
//	front-proxy headers ─┤
//	client certificate  ─┼─▶ first that succeeds ─▶ + group system:authenticated ─▶ user
//	bearer token ────────┤                      └▶ no credentials: system:anonymous, on health and discovery paths only
//	  ├ static token file└ name and password (file, off unless given)
//	  ├ service-account token      (bound and legacy), objects looked up in the store's newest state
//	  ├ bootstrap token            (Secrets in kube-system)
//	  ├ token of another issuer    (OpenID Connect; flags, or a file that is followed)
//	  └webhook                    (TokenReview; last, because it costs a call to another server)
//
// A client certificate has to be signed by the cluster's CA, and its holder must not have been removed (checked for
// each request), or by a CA that an administrator added, which only this package trusts.
//
// Settings are what an administrator adds. Without them authentication reads only this process's memory and the store.
// The package also serves the documents by which others verify service-account tokens (OpenID discovery).
//
// Goroutines: Run follows the configuration of issuers; upstream's fetchers of their keys end with it. Locks:
// verdicts.mu guards the cached results of certificate verification.
package authn
