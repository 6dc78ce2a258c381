// Package pki owns the cluster's keys and certificates: it makes them on the first start, keeps them on disk, and
// renews them while the process runs.
//
//	                 ca.pem (10 years)                      front-proxy-ca.pem (10 years)
//	   ┌──────────────┬────────┴──────┬───────────────┐               │
//	apiserver.pem  admin.pem  apiserver-kubelet-   node-NAME-     front-proxy-
//	(serving)      (client)   client.pem           *.pem          client.pem        service-account.key
//
// Every .pem file holds certificates and their private key together, so that a renewal is one atomic rename. ca.crt
// and front-proxy-ca.crt are copies of the public part, for people and programs that are pointed at a file.
//
// Goroutines: none but the caller of Run. Locks: Authority.mu guards the table of leaves, Leaf.mu the making of one
// leaf; no one holds both. Readers of a certificate take neither (each Leaf swaps a pointer).
package pki
