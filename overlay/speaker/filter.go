package speaker

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/bpf"
)

// mostFiltered is how many addresses a filter compares. With more, all packets of the protocol pass, and the speaker drops those
// that are not about its addresses. A program has at most 4096 instructions.
const mostFiltered = 512

const accept, reject = 0xffff, 0

// arpFilter passes ARP packets that ask for or claim one of the addresses. Offsets count from the ARP header.
func arpFilter(addresses []netip.Addr) ([]bpf.RawInstruction, error) {
	if len(addresses) > mostFiltered {
		return bpf.Assemble([]bpf.Instruction{bpf.RetConstant{Val: accept}})
	}
	var program []bpf.Instruction
	for _, offset := range []uint32{arpTargetOffset, arpSenderOffset} {
		program = append(program, bpf.LoadAbsolute{Off: offset, Size: 4})
		program = append(program, anyOf(addresses)...)
	}
	return bpf.Assemble(append(program, bpf.RetConstant{Val: reject}))
}

// ndpFilter passes neighbour solicitations and advertisements about targets that end like one of the addresses. Offsets
// count from the IPv6 header.
func ndpFilter(addresses []netip.Addr) ([]bpf.RawInstruction, error) {
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolICMPv6, SkipTrue: 1},
		bpf.RetConstant{Val: reject},
		bpf.LoadAbsolute{Off: typeOffset, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: solicitation, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: advertisement, SkipTrue: 1},
		bpf.RetConstant{Val: reject},
		bpf.LoadAbsolute{Off: targetEndOffset, Size: 4},
	}
	if len(addresses) > mostFiltered {
		return bpf.Assemble(append(program, bpf.RetConstant{Val: accept}))
	}
	return bpf.Assemble(append(append(program, anyOf(addresses)...), bpf.RetConstant{Val: reject}))
}

// anyOf accepts the packet when the loaded word is the end of one of the addresses.
func anyOf(addresses []netip.Addr) []bpf.Instruction {
	var out []bpf.Instruction
	for _, a := range addresses {
		b := a.AsSlice()
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(b[len(b)-4:]), SkipFalse: 1}, bpf.RetConstant{Val: accept})
	}
	return out
}
