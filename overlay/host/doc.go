// Package host owns the links, addresses, routes and kernel settings that the overlay needs on its node: the bridge that pods are
// attached to, the link with the DNS address, the route to the service network, the routes and the tunnel to other nodes' pods.
//
// The bridge isolates its ports and answers ARP for them (proxy_arp_pvlan), so the host routes packets between two pods of a node
// like all others, and the rules for Services, masquerading and policies apply to them without br_netfilter. IPv6 has no
// counterpart; there the CNI configuration gives pods routes through the bridge's address.
//
// Apply compares the kernel with the configuration and changes only what differs; it may be called again at any time. A Host is
// not safe for concurrent use. Watch runs one goroutine, joined when its context ends.
package host
