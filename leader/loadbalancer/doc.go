// Package loadbalancer owns the addresses that Services of type LoadBalancer get on machines that nobody rents out: they
// come from pools.
//
//	ConfigMap kube-system/balsa-load-balancer ─┐
//	or, without one, the server's flag ────────┴▶ pools ─┐
//	Services, Nodes ─────────────────────────────────────┴▶ assign (pure) ─▶ package cloud writes it down
//
// A pool is text: addresses, ranges and prefixes of both families (see ParsePools). The ConfigMap counts as a whole or
// not at all: text with a fault in it changes nothing, an Event at the ConfigMap says what is wrong, and the pools that
// were in force stay. While no pools are known at all, Services keep what they have.
//
// What holds: no two Services have one address, whatever fails in between. A Service keeps its address until it asks for
// another, or the pools shrink around it; then it gets another one in the same pass if there is one. Who waits is served in the order
// in which the Services were made. An address is given to somebody else only after it was seen gone from the Service that
// had it.
//
// Whoever holds an address is announced on the LAN by the nodes; this package knows nothing of that.
//
// Goroutines: the services controller's one worker and the informer of one ConfigMap. One lock guards the pools in force.
package loadbalancer
