// Package host owns the links, addresses, routes and kernel settings the overlay needs on its node: the bridge that pods
// hang on, the link that carries the DNS address, the route to the service network, the routes and the tunnel to other
// nodes' pods.
//
// The bridge keeps its ports apart and answers ARP for them (proxy_arp_pvlan), so packets between two pods of a node are
// routed by the host like all others: service addresses, masquerading and policies see them without br_netfilter. IPv6 has
// no such answer; there the CNI configuration gives pods routes through the bridge's address.
//
// Apply compares what should be with what is and touches only what differs; it may be called at any time, again and
// again. A Host is not safe for concurrent use. Watch runs one goroutine, joined when its context ends.
package host
