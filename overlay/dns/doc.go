// Package dns owns the answers to names: those of the cluster's domain from Services and EndpointSlices (by the Kubernetes
// DNS specification 1.1), and all others from other resolvers.
//
//	pods ──UDP──► lines: one per client, in turn ─► workers ─┬─► Zone.Answer: names of the cluster, from memory
//	     ──TCP──► connections, few per client ───────────────┼─► cache: answers of others, fresh or stale
//	                                                         └─► flights: one per question ─► resolvers, the next
//	kube-system/balsa-dns ─► Settings: stub domains, resolvers ──────────────────────────────► when one is slow
//
// A Zone is safe for concurrent use: one lock guards its records, held for reading while an answer is put together. The
// cache, the flights and the lines have a lock each, none held while another is taken.
//
// Everything that a flood can make grow has a bound: datagrams that wait, for one client and in all; questions that wait
// for a resolver, for one client and in all; flights; connections; the cache. Past them a datagram is dropped or the answer
// is SERVFAIL. Names of the cluster and cached answers never wait for a resolver, and clients have their turn one after the
// other: whoever floods waits for itself.
//
// Goroutines: one reader a socket, as many workers as processors, one per flight and per question that waits for it, one
// per TCP connection. Run ends and joins them all.
package dns
