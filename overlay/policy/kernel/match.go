package kernel

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/policy/plan"
)

// Registers: the kernel numbers four of 16 bytes 1…4, and the same memory in words of 4 bytes 8…23.
const (
	regMain   = 1 // its first word is firstWord
	firstWord = 8
)

func u32(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

// words is the length of an address in registers.
func (t *table) words() uint32 {
	if t.v6 {
		return 4
	}
	return 1
}

// load puts the source (or destination) address into registers from a word on.
func (t *table) load(source bool, word uint32) expr.Any {
	offset := uint32(16)
	if t.v6 {
		offset = 24
	}
	if source {
		offset -= 4 * t.words()
	}
	return &expr.Payload{DestRegister: word, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4 * t.words()}
}

func loadProtocol(word uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: word} }

// loadPort puts the destination's (or source's) port there. Packets of protocols without ports go no further in the rule,
// or have something there that no set holds together with their protocol.
func loadPort(source bool, word uint32) expr.Any {
	offset := uint32(2)
	if source {
		offset = 0
	}
	return &expr.Payload{DestRegister: word, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

// among continues the rule if what was loaded from the first word on is in the set, or is not.
func among(set string, is bool) expr.Any {
	return &expr.Lookup{SourceRegister: regMain, SetName: set, Invert: !is}
}

// judge goes where the map says.
func judge(verdicts string) expr.Any {
	return &expr.Lookup{SourceRegister: regMain, SetName: verdicts, IsDestRegSet: true}
}

func verdict(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

// known continues the rule for packets of connections that were allowed before, and errors about them.
func known() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: regMain},
		&expr.Bitwise{SourceRegister: regMain, DestRegister: regMain, Len: 4,
			Mask: u32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: u32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regMain, Data: u32(0)},
	}
}

// link continues the rule if the packet comes in through (or goes out of) the named link.
func link(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: regMain}, &expr.Cmp{Op: expr.CmpOpEq, Register: regMain, Data: padded}}
}

// rule turns a rule into what the kernel runs.
func (t *table) rule(r plan.Rule) []expr.Any {
	var list []expr.Any
	if r.Protocol != 0 {
		list = append(list, loadProtocol(firstWord),
			&expr.Cmp{Op: expr.CmpOpEq, Register: firstWord, Data: []byte{byte(r.Protocol)}})
	}
	if r.From != 0 {
		list = append(list, loadPort(false, firstWord))
		list = append(list, between(r.From, r.To)...)
	}
	if r.Holders != "" {
		next := firstWord + t.words()
		list = append(list, t.load(false, firstWord), loadProtocol(next), loadPort(false, next+1), among(r.Holders, true))
	}
	if r.Peers != "" {
		list = append(list, t.load(r.Direction == plan.Ingress, firstWord), among(r.Peers, true))
	}
	return append(list, t.fate(r))
}

func between(from, to uint16) []expr.Any {
	if from == to {
		return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: firstWord, Data: binaryutil.BigEndian.PutUint16(from)}}
	}
	return []expr.Any{
		&expr.Cmp{Op: expr.CmpOpGte, Register: firstWord, Data: binaryutil.BigEndian.PutUint16(from)},
		&expr.Cmp{Op: expr.CmpOpLte, Register: firstWord, Data: binaryutil.BigEndian.PutUint16(to)},
	}
}

// fate: what may go out is judged by whom it goes to.
func (t *table) fate(r plan.Rule) expr.Any {
	switch {
	case r.Fate == plan.Jump:
		return verdict(expr.VerdictJump, r.Chain)
	case r.Fate == plan.Deny:
		return verdict(expr.VerdictGoto, plan.Denied)
	case r.Direction == plan.Egress:
		return verdict(expr.VerdictGoto, ingressChain)
	}
	return verdict(expr.VerdictAccept, "")
}

func addressType(v6 bool) nftables.SetDatatype {
	if v6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}
