// Package relay owns the tunnel that this process carries itself, for networks and kernels on which VXLAN does not work:
// it takes packets from a TUN link and sends each to the node of the pod it is for, as the payload of a UDP packet, and
// the other way round.
//
//	pods ─ route ─► TUN link ──► outward() ──► UDP socket ──► other nodes
//	pods ◄──────── TUN link ◄── inward()  ◄── UDP socket ◄── other nodes
//
// What comes in is believed of members alone, and of each only what its own pods may have sent, to pods of this node. Who
// is where is a table of values that Set swaps; the two goroutines that carry packets read it without a lock. Each moves
// packets in batches, in buffers made once: memory does not depend on what anybody sends. A third goroutine, Run's own,
// opens and closes. When the process is gone the link stays, and packets wait for nobody: they are lost until it is back.
//
// In an encrypted tunnel wireguard-go carries the packets between the same two ends (crypt.go, cryptio.go): it tells by a
// packet's key whose it is, and which addresses may be in it. What it sends to is the plan's; what it lets out of the
// tunnel is for this node's pods alone. Its goroutines are joined when Run closes it.
package relay
