// Package loadbalancer owns the addresses that Services of type LoadBalancer get on bare metal: they come from pools.
//
//	ConfigMap kube-system/balsa-load-balancer ─┐
//	or, without one, the server's flag ────────┴▶ pools ─┐
//	Services, Nodes ─────────────────────────────────────┴▶ assign (pure) ─▶ package cloud writes it down
//
// A pool is text: addresses, ranges and prefixes of both families (see ParsePools). The ConfigMap counts as a whole or
// not at all: text with a fault in it changes nothing, an Event at the ConfigMap says what is wrong, and the pools that
// were in force stay. While no pools are known at all, Services keep what they have.
//
// Invariants: no two Services have one address, whatever fails in between. A Service keeps its address until it asks for another,
// or until the address is in no pool any more; then it gets another one in the same pass if there is one. Services that wait are
// served in the order in which they were made. An address is assigned again only after a read of its former Service has shown
// that it is gone from there.
//
// The nodes announce the addresses on the LAN (overlay/speaker); this package does not.
//
// Goroutines: the services controller's one worker and the informer of one ConfigMap. One lock guards the pools in force.
package loadbalancer
