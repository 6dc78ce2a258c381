package speaker

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Constants of RFC 4861 and RFC 8200.
const (
	ipv6Header       = 40
	protocolICMPv6   = 58
	solicitation     = 135
	advertisement    = 136
	ndpLength        = 24 // of both messages without options
	ndpHopLimit      = 255
	optionTargetMAC  = 2
	flagSolicited    = 0x40
	flagOverride     = 0x20
	typeOffset       = ipv6Header
	targetEndOffset  = ipv6Header + ndpLength - 4 // the last word of the target
	multicastPrefix  = "\xff\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xff"
	advertisementLen = ipv6Header + ndpLength + 8
)

var allNodes = netip.MustParseAddr("ff02::1")

// ndpMessage is a neighbour solicitation or advertisement with the addresses it came with.
type ndpMessage struct {
	kind           byte
	source, target netip.Addr
	hasSource      bool // false in duplicate address detection: the sender has no address yet and probes whether this one is free
}

// parseNDP parses an IPv6 packet and validates it as RFC 4861, section 7.1, demands.
func parseNDP(b []byte) (m ndpMessage, ok bool) {
	if len(b) < ipv6Header+ndpLength || b[0]>>4 != 6 || b[6] != protocolICMPv6 || b[7] != ndpHopLimit {
		return m, false
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length < ndpLength || len(b) < ipv6Header+length {
		return m, false
	}
	body := b[ipv6Header : ipv6Header+length]
	if body[0] != solicitation && body[0] != advertisement || body[1] != 0 {
		return m, false
	}
	source, destination := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	m = ndpMessage{kind: body[0], source: source, target: netip.AddrFrom16([16]byte(body[8:24])), hasSource: !source.IsUnspecified()}
	if m.target.IsMulticast() || source.IsMulticast() || icmpChecksum(source, destination, body) != 0 {
		return m, false
	}
	return m, true
}

// advertise returns the IPv6 packet that says which link-layer address has target.
func advertise(source, destination, target netip.Addr, mac net.HardwareAddr, flags byte) []byte {
	b := make([]byte, advertisementLen)
	b[0], b[6], b[7] = 6<<4, protocolICMPv6, ndpHopLimit
	binary.BigEndian.PutUint16(b[4:], advertisementLen-ipv6Header)
	copy(b[8:], source.AsSlice())
	copy(b[24:], destination.AsSlice())
	body := b[ipv6Header:]
	body[0], body[4] = advertisement, flags
	copy(body[8:], target.AsSlice())
	body[24], body[25] = optionTargetMAC, 1
	copy(body[26:], mac)
	binary.BigEndian.PutUint16(body[2:], icmpChecksum(source, destination, body))
	return b
}

// icmpChecksum returns the checksum of RFC 4443, section 2.3; over a message with its checksum it is 0.
func icmpChecksum(source, destination netip.Addr, body []byte) uint16 {
	sum := uint32(len(body)) + protocolICMPv6
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(source.AsSlice())
	add(destination.AsSlice())
	add(body)
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// solicitedNode is the group in which the neighbours of an address are asked for it (RFC 4291, section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	copy(b[:], multicastPrefix)
	return netip.AddrFrom16(b)
}

// groupMAC is the Ethernet address of an IPv6 group (RFC 2464, section 7).
func groupMAC(a netip.Addr) net.HardwareAddr {
	b := a.As16()
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
