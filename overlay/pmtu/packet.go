package pmtu

import (
	"encoding/binary"
	"net/netip"

	"github.com/balsahq/balsa/overlay/routes"
)

const (
	ipHeader    = 20
	icmpHeader  = 8
	echoRequest = 8
	echoReply   = 0
	protoICMP   = 1
)

// probe returns the payload of a UDP packet to the peer's tunnel, which with all headers has the size. id and sequence come back
// with the answer.
func probe(t *routes.Tunnel, p *routes.Peer, size int, id, sequence uint16) []byte {
	inner := size - t.Overhead
	var out []byte
	if !t.Relayed {
		out = binary.BigEndian.AppendUint32(out, 0x08000000) // flags of RFC 7348, section 5: the network identifier is valid
		out = binary.BigEndian.AppendUint32(out, uint32(t.VNI)<<8)
		out = append(append(out, p.MAC[:]...), t.MAC[:]...)
		out = append(out, 0x08, 0x00) // IPv4
	}
	return append(out, echo(t.Address, p.Address, inner, id, sequence)...)
}

// echo returns an echo request with its IPv4 header.
func echo(from, to netip.Addr, size int, id, sequence uint16) []byte {
	b := make([]byte, max(size, ipHeader+icmpHeader))
	b[0], b[8], b[9] = 0x45, 64, protoICMP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[6] = 0x40 // do not fragment
	source, target := from.As4(), to.As4()
	copy(b[12:], source[:])
	copy(b[16:], target[:])
	binary.BigEndian.PutUint16(b[10:], checksum(b[:ipHeader]))
	m := b[ipHeader:]
	m[0] = echoRequest
	binary.BigEndian.PutUint16(m[4:], id)
	binary.BigEndian.PutUint16(m[6:], sequence)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	return b
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// answer reads an ICMP message; ok is false unless it is the reply to a probe with this id.
func answer(m []byte, id uint16) (sequence uint16, ok bool) {
	if len(m) < icmpHeader || m[0] != echoReply || binary.BigEndian.Uint16(m[4:]) != id {
		return 0, false
	}
	return binary.BigEndian.Uint16(m[6:]), true
}
