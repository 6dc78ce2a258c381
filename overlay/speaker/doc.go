// Package speaker owns who answers on the LAN for the addresses of load balancers: exactly one node each.
//
//	Services, EndpointSlices, Nodes ─▶ choose (pure): which node has which address ─┐
//	links of this host ──▶ LANs ──▶ annotation balsa.dev/lans of this Node          │
//	                         └──────────────────────────────────────────────────────┴▶ one speaker a link and family
//	neighbours ◀── ARP (RFC 826, 5227) and neighbour advertisements (RFC 4861) ────────┘
//
// Announced are the addresses in status.loadBalancer of Services with the condition balsa.dev/PoolAddress. No address is
// put on a link: speakers answer through packet sockets whose filters let only questions about their addresses pass, and
// packets that arrive are routed to Services as if they had come to any other address of theirs.
//
// Every node makes the same choice from the same objects, without an election: of the nodes that can have an address, the
// one with the highest hash of address and name. A node can have it that is ready, that nobody excluded
// (node.kubernetes.io/exclude-from-external-load-balancers, the autoscaler's ToBeDeletedByClusterAutoscaler), whose LANs
// hold the address and, with externalTrafficPolicy Local, that has an endpoint. So a node that dies moves its own
// addresses and nobody else's; an address on none of the nodes' LANs is announced by nobody, and is for routers to lead here.
//
// Two nodes disagree while one has heard of a change and the other has not: as long as a watch event takes. A node that
// is cut off from the API hears of nothing. It learns from the claims of others: when somebody else claims an address it
// has, and a second later its own objects still say that the address is its own, it asks the API directly. If that
// says it is a ready node, it claims the address again, at most every ten seconds (RFC 5227, section 2.4); if there is no
// answer it stays silent until there is one. New holders claim their addresses three times in three seconds, so that two
// holders last no longer than that and a question to the API. A node that is cut off from the other nodes, too, but not
// from clients, hears no claim and goes on, as it must when no server lives.
//
// Goroutines: Run's own, which alone decides and owns the speakers; one a speaker, which answers; one that follows the
// links. The last two exist only while, respectively once, there is an address to announce. One lock guards what
// handlers and speakers leave for Run's goroutine.
package speaker
