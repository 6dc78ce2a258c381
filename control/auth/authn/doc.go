// Package authn owns the answer to "who is this": it turns a request into a user.
//
//	in-process identity ─┐
//	front-proxy headers ─┤
//	client certificate  ─┼─▶ first that knows ─▶ + group system:authenticated ─▶ user
//	bearer token ────────┘                      └▶ nobody knows: system:anonymous, on health and discovery paths only
//	  ├ static token file          (optional)
//	  ├ service-account token      (bound and legacy), objects looked up in the store's newest state
//	  └ bootstrap token            (Secrets in kube-system)
//
// It also issues service-account tokens' verification documents (OpenID discovery). No goroutines of its own, no locks.
package authn
