// Package authn owns the answer to "who is this": it turns a request into a user.
//
//	in-process identity ─┐
//	front-proxy headers ─┤
//	client certificate  ─┼─▶ first that knows ─▶ + group system:authenticated ─▶ user
//	bearer token ────────┤                      └▶ nobody knows: system:anonymous, on health and discovery paths only
//	  ├ static token file└ name and password (file, off unless given)
//	  ├ service-account token      (bound and legacy), objects looked up in the store's newest state
//	  ├ bootstrap token            (Secrets in kube-system)
//	  ├ token of another issuer    (OpenID Connect; flags, or a file that is followed)
//	  └ webhook                    (TokenReview; last, because somebody has to be asked)
//
// Client certificates are those of the cluster's CA, unless their holder was removed (asked for each request), and those of
// authorities that an administrator added, which only this package believes.
//
// Settings are what an administrator adds; without them nothing but memory of this process and the store is asked. It also
// issues service-account tokens' verification documents (OpenID discovery).
//
// Goroutines: Run follows the configuration of issuers; upstream's fetchers of their keys end with it. Locks: verdicts.mu
// guards remembered certificates.
package authn
