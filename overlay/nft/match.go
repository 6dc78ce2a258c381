package nft

import (
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// regMain is the first word of the registers: the kernel numbers four registers of 16 bytes 1…4, and the same memory in words
// of 4 bytes 8…23.
const regMain = 8

// word is the register that begins at a word.
func word(n uint32) uint32 { return regMain + n }

func u32(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

// addressBytes is the length of an address of the family.
func (t *Table) addressBytes() uint32 {
	if t.cfg.V4 {
		return 4
	}
	return 16
}

func (t *Table) addressWords() uint32 { return t.addressBytes() / 4 }

func (t *Table) loadSource(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: t.addressOffset(true), Len: t.addressBytes()}
}

func (t *Table) loadDestination(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: t.addressOffset(false), Len: t.addressBytes()}
}

// addressOffset is where the source (or else the destination) is in the family's header.
func (t *Table) addressOffset(source bool) uint32 {
	offset := uint32(24)
	if t.cfg.V4 {
		offset = 16
	}
	if source {
		offset -= t.addressBytes()
	}
	return offset
}

// within continues the rule if the source (or else the destination) is in the network. The kernel looks at few bytes faster
// than at many, and fastest at one, two or four without a mask.
func (t *Table) within(source bool, p netip.Prefix) []expr.Any {
	size, network := t.addressBytes(), p.Masked().Addr().AsSlice()
	load := &expr.Payload{DestRegister: regMain, Base: expr.PayloadBaseNetworkHeader, Offset: t.addressOffset(source), Len: size}
	if p.Bits() == 8 || p.Bits() == 16 {
		load.Len = uint32(p.Bits() / 8)
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: regMain, Data: network[:load.Len]}}
	}
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		load,
		&expr.Bitwise{SourceRegister: regMain, DestRegister: regMain, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regMain, Data: network},
	}
}

func (t *Table) from(p netip.Prefix) []expr.Any { return t.within(true, p) }
func (t *Table) to(p netip.Prefix) []expr.Any   { return t.within(false, p) }

// local continues the rule if the source (or else the destination) is an address of this host.
func local(source bool) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regMain, ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regMain, Data: u32(unix.RTN_LOCAL)},
	}
}

// here continues the rule if the destination is this host, or many: no single other host.
func here() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regMain, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regMain, Data: u32(unix.RTN_UNICAST)},
	}
}

// destination loads protocol and port, and the address before them or not.
func (t *Table) destination(port bool) []expr.Any {
	var load []expr.Any
	if !port {
		load = append(load, t.loadDestination(word(0)))
	}
	return append(load,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: word(t.pairWord())},
		&expr.Payload{DestRegister: word(t.pairWord() + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

// lookup continues the rule if the words are a key of the map, with the value in other words.
func lookup(name string, from, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: word(from), DestRegister: word(to), IsDestRegSet: true, SetName: name}
}

// verdictOf does what the map says, or continues the rule.
func verdictOf(name string, from uint32) expr.Any {
	return &expr.Lookup{SourceRegister: word(from), IsDestRegSet: true, SetName: name}
}

// member continues the rule if the words are in the set, or are not.
func member(name string, from uint32, is bool) expr.Any {
	return &expr.Lookup{SourceRegister: word(from), SetName: name, Invert: !is}
}

// toPort continues the rule for datagrams to the port. The kernel compares bytes of the header without a call, so the port
// comes first, which most packets are told apart by.
func (t *Table) toPort(port uint16) []expr.Any {
	var protocol expr.Any = &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regMain} // behind any number of headers
	if t.cfg.V4 {
		protocol = &expr.Payload{DestRegister: regMain, Base: expr.PayloadBaseNetworkHeader, Offset: 9, Len: 1}
	}
	return []expr.Any{
		&expr.Payload{DestRegister: regMain, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regMain, Data: binaryutil.BigEndian.PutUint16(port)},
		protocol,
		&expr.Cmp{Op: expr.CmpOpEq, Register: regMain, Data: []byte{unix.IPPROTO_UDP}},
	}
}

// ipsDstNAT is the bit of a connection's status that says its destination was rewritten (IPS_DST_NAT).
const ipsDstNAT = 1 << 5

// redirected continues the rule for connections whose destination was (or was not) rewritten.
func redirected(yes bool) []expr.Any {
	op := expr.CmpOpEq
	if yes {
		op = expr.CmpOpNeq
	}
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: regMain},
		&expr.Bitwise{SourceRegister: regMain, DestRegister: regMain, Len: 4, Mask: u32(ipsDstNAT), Xor: u32(0)},
		&expr.Cmp{Op: op, Register: regMain, Data: u32(0)},
	}
}

// link continues the rule if the packet comes in through (or goes out of) the named link, or does not.
func link(key expr.MetaKey, name string, is bool) []expr.Any {
	op := expr.CmpOpNeq
	if is {
		op = expr.CmpOpEq
	}
	padded := make([]byte, 16)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: regMain},
		&expr.Cmp{Op: op, Register: regMain, Data: padded},
	}
}

// marked continues the rule if the mark asks for masquerading.
func (t *Table) marked() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regMain},
		&expr.Bitwise{SourceRegister: regMain, DestRegister: regMain, Len: 4, Mask: u32(t.cfg.Mark), Xor: u32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regMain, Data: u32(0)},
	}
}

// setMark sets or clears the bit in the packet's mark.
func (t *Table) setMark(on bool) []expr.Any {
	xor := uint32(0)
	if on {
		xor = t.cfg.Mark
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regMain},
		&expr.Bitwise{SourceRegister: regMain, DestRegister: regMain, Len: 4, Mask: u32(^t.cfg.Mark), Xor: u32(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regMain},
	}
}

func verdict(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

var loopback4 = netip.MustParsePrefix("127.0.0.0/8")
