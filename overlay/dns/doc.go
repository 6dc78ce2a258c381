// Package dns is the DNS server of a node. It answers names of the cluster's domain from Services and EndpointSlices
// (Kubernetes DNS specification 1.1), and forwards all other names to resolvers.
//
//	pods ──UDP──► queues: one per client, in turn ► workers ─┬─► Zone.Answer: names of the cluster, from memory
//	     ──TCP──► connections, few per client ───────────────┼─► cache: answers of resolvers, fresh or stale
//	                                                         └─► flights: one per question ─► resolvers, the next
//	kube-system/balsa-dns ─► Settings: stub domains, resolvers ──────────────────────────────► when one is slow
//
// A Zone is safe for concurrent use: one lock guards its records, and is held for reading while an answer is built. The
// cache, the flights and the client queues have one lock each; no goroutine holds two of them.
//
// Everything that a flood can make grow is bounded: waiting datagrams and questions that wait for a resolver (both per
// client and in all), flights, connections and the cache. Past a bound a datagram is dropped or the answer is SERVFAIL.
// Names of the cluster and cached answers never wait for a resolver. Clients are served in turn, so a client that floods
// delays only itself.
//
// Goroutines: one reader a socket, as many workers as processors, one per flight and per question that waits for it, one
// per TCP connection. Run ends and joins them all.
package dns
