// Package relay owns the tunnel that this process carries itself, for networks and kernels on which VXLAN does not work. It
// reads packets from a TUN link and sends each, as the payload of a UDP packet, to the node of its destination pod, and writes
// packets of other nodes to the link.
//
//	pods ─ route ─► TUN link ──► outward() ──► UDP socket ──► other nodes
//	pods ◄──────── TUN link ◄── inward()  ◄── UDP socket ◄── other nodes
//
// Only packets of members are accepted, and of each member only packets from its own pods to pods of this node. A table says
// which pod network is on which node. Set swaps it, and the two goroutines that carry packets read it without a lock. Each moves
// packets in batches, in buffers made once, so memory does not depend on what other nodes send. Run's own goroutine opens and
// closes the link and the socket. When the process ends the link stays, and packets are lost until the process is back.
//
// In an encrypted tunnel wireguard-go carries the packets between the same link and socket (wireguard.go, wireguardio.go). It
// knows by a packet's key which node sent it, and which source addresses it may have. It sends to the addresses of the plan, and
// only packets to this node's pods leave the tunnel. Its goroutines are joined when Run closes it.
package relay
