package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The functions below return expressions of rules: those that load something into registers, and those that match, which
// continue the rule if the packet is as they say and end it otherwise.

// Word is the register that begins at a word: the kernel numbers four registers of 16 bytes 1…4, and the same memory in words
// of 4 bytes 8…23.
func Word(n uint32) uint32 { return 8 + n }

// Native is a number as the kernel keeps it in a register.
func Native(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

// AddressType is the type of the family's addresses.
func (f Family) AddressType() nftables.SetDatatype {
	if f == IPv4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// AddressWords is the length of an address in registers of 4 bytes.
func (f Family) AddressWords() uint32 { return f.AddressType().Bytes / 4 }

// Has tells whether an address is of the family.
func (f Family) Has(a netip.Addr) bool { return a.Is4() == (f == IPv4) }

// LoadSource puts the packet's source address into registers from a word on.
func (f Family) LoadSource(at uint32) expr.Any {
	return loadHeader(at, f.sourceOffset(), f.AddressType().Bytes)
}

// LoadDestination puts the packet's destination address into registers from a word on.
func (f Family) LoadDestination(at uint32) expr.Any {
	return loadHeader(at, f.destinationOffset(), f.AddressType().Bytes)
}

// sourceOffset is where the source address is in the family's header, in bytes.
func (f Family) sourceOffset() uint32 {
	if f == IPv4 {
		return 12
	}
	return 8
}

func (f Family) destinationOffset() uint32 { return f.sourceOffset() + f.AddressType().Bytes }

func loadHeader(at, offset, size uint32) expr.Any {
	return &expr.Payload{DestRegister: Word(at), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

// LoadProtocol puts the transport protocol's number into a word.
func LoadProtocol(at uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Word(at)}
}

// LoadSourcePort puts the source port into a word. Packets that are too short for it end the rule; those of protocols
// without ports have something else there.
func LoadSourcePort(at uint32) expr.Any { return loadTransport(at, 0) }

// LoadDestinationPort puts the destination port into a word, as LoadSourcePort does.
func LoadDestinationPort(at uint32) expr.Any { return loadTransport(at, 2) }

func loadTransport(at, offset uint32) expr.Any {
	return &expr.Payload{DestRegister: Word(at), Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

// From matches packets whose source is in the network.
func (f Family) From(p netip.Prefix) []expr.Any { return f.within(f.sourceOffset(), p) }

// To matches packets whose destination is in the network.
func (f Family) To(p netip.Prefix) []expr.Any { return f.within(f.destinationOffset(), p) }

// within matches packets whose address at the offset is in the network. The kernel compares few bytes faster than many, and
// fastest one, two or four without a mask.
func (f Family) within(offset uint32, p netip.Prefix) []expr.Any {
	size, network := f.AddressType().Bytes, p.Masked().Addr().AsSlice()
	if p.Bits() == 8 || p.Bits() == 16 {
		size = uint32(p.Bits() / 8)
		return []expr.Any{loadHeader(0, offset, size), equal(network[:size])}
	}
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{loadHeader(0, offset, size), masked(mask), equal(network)}
}

// equal matches if the first register begins with the bytes.
func equal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: Word(0), Data: data}
}

// masked keeps the bits of the mask in the first register.
func masked(mask []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: Word(0), DestRegister: Word(0), Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
}

// AnyBit matches if one of the bits is set in the number in the first word.
func AnyBit(bits uint32) []expr.Any {
	return []expr.Any{masked(Native(bits)), &expr.Cmp{Op: expr.CmpOpNeq, Register: Word(0), Data: Native(0)}}
}

// NoBit matches if none of the bits is set in the number in the first word.
func NoBit(bits uint32) []expr.Any { return []expr.Any{masked(Native(bits)), equal(Native(0))} }

// InLink matches packets that come in through the named link.
func InLink(name string) []expr.Any { return link(expr.MetaKeyIIFNAME, expr.CmpOpEq, name) }

// NotInLink matches packets that come in through another link, or through none.
func NotInLink(name string) []expr.Any { return link(expr.MetaKeyIIFNAME, expr.CmpOpNeq, name) }

// OutLink matches packets that go out of the named link.
func OutLink(name string) []expr.Any { return link(expr.MetaKeyOIFNAME, expr.CmpOpEq, name) }

// NotOutLink matches packets that go out of another link, or of none.
func NotOutLink(name string) []expr.Any { return link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, name) }

func link(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: Word(0)}, &expr.Cmp{Op: op, Register: Word(0), Data: padded}}
}

// Member matches if the words from one on are a key of the set.
func Member(set string, from uint32) expr.Any {
	return &expr.Lookup{SourceRegister: Word(from), SetName: set}
}

// NotMember matches if the words from one on are no key of the set.
func NotMember(set string, from uint32) expr.Any {
	return &expr.Lookup{SourceRegister: Word(from), SetName: set, Invert: true}
}

// Lookup matches if the words from one on are a key of the map, and puts the value into other words.
func Lookup(name string, from, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: Word(from), DestRegister: Word(to), IsDestRegSet: true, SetName: name}
}

// VerdictOf gives the verdict that the map has for the words from one on, and continues the rule if there is none.
func VerdictOf(verdicts string, from uint32) expr.Any {
	return &expr.Lookup{SourceRegister: Word(from), IsDestRegSet: true, SetName: verdicts}
}

// Accept ends the table's judgement: the packet passes.
func Accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }

// Drop discards the packet.
func Drop() expr.Any { return &expr.Verdict{Kind: expr.VerdictDrop} }

// Return goes back to the chain that led here.
func Return() expr.Any { return &expr.Verdict{Kind: expr.VerdictReturn} }

// Jump goes on in another chain, and comes back if that does not decide.
func Jump(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain} }

// Goto goes on in another chain, and does not come back.
func Goto(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }
