// Package dns owns the answers to names: those of the cluster's domain from Services and EndpointSlices (by the Kubernetes
// DNS specification 1.1), and all others from the host's resolvers.
//
//	pods ──UDP, TCP──► Server ──► Zone.Answer: names of the cluster, from memory
//	                      └─────► forwarder: cache, then the host's resolvers
//
// A Zone is safe for concurrent use: one lock guards its records, held for reading while an answer is put together. The
// Server bounds what a flood can cost: queries handled at once, queries forwarded at once, TCP connections, and the cache
// have limits; past them a datagram is dropped or the answer is SERVFAIL.
package dns
