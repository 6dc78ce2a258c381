// Package pmtu finds the path MTU to each peer of the tunnel.
//
//	routes.Plan ─ Set ─► Prober ──► UDP, not fragmented ────► the peer's tunnel port
//	                       ▲                                        │ unwrapped by the peer's kernel, which answers
//	host routes ◄─ Changed ┘◄───── echo reply, through the tunnel ◄─┘ the echo request inside
//
// A probe is a packet of the tunnel, of a chosen size, with an echo request (RFC 792) to the peer's address inside the
// tunnel. So the peer needs nothing but its tunnel, no further port is open, and the probe takes the path of pods' packets,
// to the peer and back. If a router reports that it dropped a packet, the kernel's path MTU is used. Routers that drop
// silently are detected by probes without an answer, as in RFC 8899. A peer that answers no probe is probed again later;
// the MTU of its path is unknown.
//
// A peer is probed when it comes or moves, when this node's tunnel changes, and then every few minutes. The search is a pure
// function of answers (search.go). Run is one goroutine that sends and one that receives; Set and Paths may be called from any
// goroutine. Peers without an IPv4 pod network are not probed.
package pmtu
