package rules

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/nft"
)

// fromThisHost matches packets whose source is an address of this host.
func fromThisHost() []expr.Any {
	return addressKind(&expr.Fib{Register: nft.Word(0), ResultADDRTYPE: true, FlagSADDR: true}, expr.CmpOpEq, unix.RTN_LOCAL)
}

// toThisHost matches packets whose destination is an address of this host.
func toThisHost() []expr.Any {
	return addressKind(&expr.Fib{Register: nft.Word(0), ResultADDRTYPE: true, FlagDADDR: true}, expr.CmpOpEq, unix.RTN_LOCAL)
}

// toNoOtherHost matches packets whose destination is this host, or many hosts: not one other host.
func toNoOtherHost() []expr.Any {
	return addressKind(&expr.Fib{Register: nft.Word(0), ResultADDRTYPE: true, FlagDADDR: true}, expr.CmpOpNeq, unix.RTN_UNICAST)
}

func addressKind(load *expr.Fib, op expr.CmpOp, kind uint32) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: op, Register: nft.Word(0), Data: nft.Native(kind)}}
}

// loadDestination loads address, protocol and port of the destination into the words in which the maps by address have them.
func (l *layout) loadDestination() []expr.Any {
	return append([]expr.Any{l.family.LoadDestination(0)}, l.loadPort()...)
}

// loadPort loads protocol and port of the destination into the words in which the maps by port have them.
func (l *layout) loadPort() []expr.Any {
	return []expr.Any{nft.LoadProtocol(l.pairWord()), nft.LoadDestinationPort(l.pairWord() + 1)}
}

// toPort matches datagrams to the port. The kernel compares bytes of the header without a call, so the port, which tells
// most packets apart, comes first.
func (l *layout) toPort(port uint16) []expr.Any {
	var protocol expr.Any = &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: nft.Word(0)} // behind any number of headers
	if l.family == nft.IPv4 {
		protocol = &expr.Payload{DestRegister: nft.Word(0), Base: expr.PayloadBaseNetworkHeader, Offset: 9, Len: 1}
	}
	return []expr.Any{
		nft.LoadDestinationPort(0),
		&expr.Cmp{Op: expr.CmpOpEq, Register: nft.Word(0), Data: binaryutil.BigEndian.PutUint16(port)},
		protocol,
		&expr.Cmp{Op: expr.CmpOpEq, Register: nft.Word(0), Data: []byte{unix.IPPROTO_UDP}},
	}
}

// ipsDstNAT is the bit of a connection's status that says that its destination was rewritten (IPS_DST_NAT).
const ipsDstNAT = 1 << 5

// redirected matches packets of connections whose destination was rewritten.
func redirected() []expr.Any { return slices.Concat(connectionStatus(), nft.AnyBit(ipsDstNAT)) }

// notRedirected matches packets of connections whose destination was not rewritten.
func notRedirected() []expr.Any { return slices.Concat(connectionStatus(), nft.NoBit(ipsDstNAT)) }

func connectionStatus() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: nft.Word(0)}}
}

// marked matches packets whose mark asks for masquerading.
func (l *layout) marked() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: nft.Word(0)}}, nft.AnyBit(l.cfg.Mark)...)
}

// setMark marks the packet for masquerading.
func (l *layout) setMark() []expr.Any { return l.changeMark(l.cfg.Mark) }

// clearMark clears the bit in the packet's mark.
func (l *layout) clearMark() []expr.Any { return l.changeMark(0) }

// changeMark replaces the masquerading bit of the packet's mark by bit, which is that bit or 0.
func (l *layout) changeMark(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: nft.Word(0)},
		&expr.Bitwise{SourceRegister: nft.Word(0), DestRegister: nft.Word(0), Len: 4, Mask: nft.Native(^l.cfg.Mark), Xor: nft.Native(bit)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: nft.Word(0)},
	}
}

var loopback4 = netip.MustParsePrefix("127.0.0.0/8")
