package routes

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// MAC is a link-layer address.
type MAC [6]byte

// String is the usual form.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// macOf returns a node's link-layer address in the tunnel, made from the network address of its pod network. Of an IPv6 network
// it takes the 32 bits before the pods' part, in which the nodes of a cluster differ.
func macOf(pods, pods6 netip.Prefix) MAC {
	if pods.IsValid() {
		b := pods.Addr().As4()
		return MAC{0x0a, 0x58, b[0], b[1], b[2], b[3]}
	}
	m := MAC{0x0a, 0x58}
	if pods6.IsValid() {
		b := pods6.Addr().As16()
		high, low, shift := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]), 128-pods6.Bits()
		number := high >> max(shift-64, 0)
		if shift < 64 {
			number = high<<(64-shift) | low>>shift
		}
		binary.BigEndian.PutUint32(m[2:], uint32(number))
	}
	return m
}

// linkLocal returns a node's address as IPv6 router in the tunnel, made from its link-layer address (RFC 4291, appendix A).
func linkLocal(m MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

func peerOf(n *Node, pods netip.Prefix, via netip.Addr) Peer {
	p := Peer{Node: n.Name, Pods: pods, Via: via, Key: n.Key, MAC: macOf(n.Pods, n.Pods6), Address: pods.Addr()}
	if pods.Addr().Is6() {
		p.Address = linkLocal(p.MAC)
	}
	return p
}
