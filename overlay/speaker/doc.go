// Package speaker announces the addresses of load balancers on the LAN: each address by exactly one node.
//
//	Services, EndpointSlices, Nodes ─▶ choose (pure): which node has which address ─┐
//	links of this host ──▶ LANs ──▶ annotation balsa.dev/lans of this Node          │
//	                         └──────────────────────────────────────────────────────┴▶ one speaker a link and family
//	neighbours ◀── ARP (RFC 826, 5227) and neighbour advertisements (RFC 4861) ────────┘
//
// It announces the addresses in status.loadBalancer of Services with the condition balsa.dev/PoolAddress. No address is added to
// a link: speakers answer through packet sockets whose filters pass only questions about their addresses. Packets that arrive
// are routed to Services like packets to their other addresses.
//
// Every node makes the same choice from the same objects, without an election: of the nodes that can have an address, the
// one with the highest hash of address and name. A node can have an address if it is ready, is not excluded
// (node.kubernetes.io/exclude-from-external-load-balancers, the autoscaler's ToBeDeletedByClusterAutoscaler), has a LAN that
// contains the address and, with externalTrafficPolicy Local, has an endpoint. So the death of a node moves only its own
// addresses. An address on none of the nodes' LANs is not announced; routers must have a route to it.
//
// Two nodes disagree while only one of them has received a change: for as long as a watch event takes. A node that is cut off
// from the API receives no changes; it notices from the claims of other nodes. When another host claims an address that it has,
// and one second later its own objects still say that the address is its own, it asks the API directly. If the API says that
// it is a ready node, it claims the address again, at most every ten seconds (RFC 5227, section 2.4). Without an answer it stays
// silent until there is one. A new holder claims its addresses three times in three seconds, so that two nodes hold one address
// no longer than that and one question to the API. A node that is cut off from the API and from the other nodes, but not from
// clients, receives no claim and goes on, as it must when no server is up.
//
// Goroutines: Run's own, which alone decides and owns the speakers; one for each speaker, which answers; one that watches the
// links. Speakers exist only while there is an address to announce, the watch from the first address on. One lock guards the
// changes that handlers and speakers note for Run's goroutine.
package speaker
