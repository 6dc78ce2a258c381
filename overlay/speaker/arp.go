package speaker

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Constants of RFC 826.
const (
	arpLength       = 28
	arpRequest      = 1
	arpReply        = 2
	arpSenderOffset = 14
	arpTargetOffset = 24
)

// arpPacket is ARP for IPv4 over Ethernet.
type arpPacket struct {
	op                   uint16
	senderMAC, targetMAC net.HardwareAddr
	sender, target       netip.Addr
}

func parseARP(b []byte) (p arpPacket, ok bool) {
	if len(b) < arpLength || binary.BigEndian.Uint64(b)>>16 != 0x0001_0800_0604 {
		return p, false
	}
	return arpPacket{
		op: binary.BigEndian.Uint16(b[6:]), senderMAC: net.HardwareAddr(b[8:14]), sender: netip.AddrFrom4([4]byte(b[14:18])),
		targetMAC: net.HardwareAddr(b[18:24]), target: netip.AddrFrom4([4]byte(b[24:28])),
	}, true
}

func (p arpPacket) bytes() []byte {
	b := make([]byte, 8, arpLength)
	binary.BigEndian.PutUint64(b, 0x0001_0800_0604<<16|uint64(p.op))
	for _, part := range [][]byte{p.senderMAC, p.sender.AsSlice(), p.targetMAC, p.target.AsSlice()} {
		b = append(b, part...)
	}
	return b
}
