// Package pki owns the cluster's keys and certificates: it creates them at the first start, stores them on disk, renews
// them while the process runs, and signs the certificates of joining machines.
//
//	                 ca.pem (10 years)                      front-proxy-ca.pem (10 years)
//	   ┌──────────────┬────────┴──────┬───────────────┐               │
//	apiserver.pem  admin.pem  apiserver-kubelet-   node-NAME-     front-proxy-
//	peer.pem       (client)   client.pem           *.pem          client.pem        service-account.key
//
// Every .pem file holds certificates and their private key together, so that a renewal is one atomic rename. ca.crt and
// front-proxy-ca.crt are copies of the public part, for users and programs that need a file.
//
// A rotation replaces the CA and the key of tokens while the process runs (roots.go): UseKeys installs the keys on which
// the cluster has agreed: the signing ones, and the CAs and keys that are also trusted, which TrustFile holds. Every
// verification uses the CAs that are trusted at that time. A link is the certificate of a CA signed by its predecessor;
// servers send links with their certificates.
//
// All servers share the two CAs and the service-account key, which a new server gets in a Bundle; every leaf certificate is
// made on the machine that uses it. A machine without the CA has Credentials: its key never leaves the machine, and a
// server signs the certificate. A joining machine knows only the Pin of the CA; therefore servers send the CA with their
// certificate.
//
// Validity depends on the wall clock, which Go's timers do not follow: each handshake checks whether its certificate is
// valid now, and renews it if not. Wake checks all certificates; it is called when the clock was set.
//
// Issuer signs approved CertificateSigningRequests with the CA or with a CA of the administrator, and refuses certificates
// that would let their holder impersonate a server. Trust is a file of further CAs whose clients the API accepts.
//
// Goroutines: only the callers of Run. Locks: Issuer.mu guards the last CA that it read; Authority.mu guards the table of
// leaves and this server's names; Leaf.mu guards the renewal of one leaf, and Authority.mu may not be taken under it;
// Credentials.mu guards its files. Readers of a certificate take no lock (each Leaf swaps a pointer).
package pki
