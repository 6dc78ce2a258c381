// Package pmtu owns how large packets may be on the way to each peer of the tunnel.
//
//	mesh.Plan ── Set ──► Prober ──► UDP, not to be cut up ──► the peer's tunnel port
//	                       ▲                                        │ unwrapped by the peer's kernel, which answers
//	host routes ◄─ Changed ┘◄───── echo reply, through the tunnel ◄─┘ the echo request inside
//
// A probe is what the tunnel itself sends, of a chosen size: an echo request (RFC 792) to the peer's address inside. So
// nothing on the peer is needed but its tunnel, no further port is open, and what is measured is the way that pods'
// packets take, to the peer and back. Routers that say what they drop are believed (the kernel remembers), and those that
// drop silently are found out by sizes that get no answer, as RFC 8899 does it. A peer that answers nothing is left alone
// and asked again after a while; about it nothing is known.
//
// A peer is probed when it comes, moves, or this node's tunnel changes; then every few minutes once. The search is a pure
// function of answers (search.go). Run is one goroutine that sends and one that hears; Set and Paths may be called from
// any. Peers without an IPv4 pod network are not probed.
package pmtu
