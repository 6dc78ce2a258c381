// Package pki owns the cluster's keys and certificates: it makes them on the first start, keeps them on disk, renews
// them while the process runs, and signs those of who joins.
//
//	                 ca.pem (10 years)                      front-proxy-ca.pem (10 years)
//	   ┌──────────────┬────────┴──────┬───────────────┐               │
//	apiserver.pem  admin.pem  apiserver-kubelet-   node-NAME-     front-proxy-
//	peer.pem       (client)   client.pem           *.pem          client.pem        service-account.key
//
// Every .pem file holds certificates and their private key together, so that a renewal is one atomic rename. ca.crt
// and front-proxy-ca.crt are copies of the public part, for people and programs that are pointed at a file.
//
// A rotation replaces the CA and the key of tokens while the process runs (roots.go): UseKeys takes what the cluster has agreed
// on, with the CAs and keys that count beside those that sign, which TrustFile keeps. Everything that verifies asks for the
// CAs of the moment. A link is the certificate of a CA signed by the CA before it; servers send theirs along.
//
// Several servers share the two CAs and the service-account key, which a Bundle carries to a new one; every leaf is
// made where it is used. A machine without the CA holds Credentials: its key never leaves it, a server signs.
// Who joins knows only the Pin of the CA; servers therefore send the CA along with their certificate.
//
// A certificate counts by the wall clock, which Go's timers do not follow: each handshake looks whether the one it shows is
// valid now, and has it made anew if not; Wake has all of them looked at, for whoever hears that the clock was set.
//
// Issuer signs what somebody approved at the API, with the CA or with one of the administrator's, and never what would let
// its holder pass for a server. Trust is a file of authorities that the API believes in beside the CA.
//
// Goroutines: none but the callers of Run. Locks: Issuer.mu guards the CA it read last; Authority.mu guards the table of leaves and this server's names,
// Leaf.mu the making of one leaf, under which Authority.mu may not be taken; Credentials.mu guards its files. Readers of a certificate take neither (each Leaf swaps a pointer).
package pki
