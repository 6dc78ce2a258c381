package rules

import (
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

// chain returns a chain of the plan as the kernel takes it.
func (l *layout) chain(c plan.Chain) nft.Chain {
	out := nft.Chain{Name: c.Name}
	for _, r := range c.Rules {
		out.Rules = append(out.Rules, l.rule(r))
	}
	return out
}

// rule returns a rule of the plan as the kernel takes it. Packets that are too short for a port do not match it; for
// protocols without ports the loaded bytes are other data, which no set holds together with such a protocol.
func (l *layout) rule(r plan.Rule) nft.Rule {
	var list nft.Rule
	if r.Protocol != 0 {
		list = append(list, nft.LoadProtocol(0), compare(expr.CmpOpEq, []byte{byte(r.Protocol)}))
	}
	if r.From != 0 {
		list = append(list, nft.LoadDestinationPort(0))
		list = append(list, between(r.From, r.To)...)
	}
	if r.Holders != "" {
		next := l.family.AddressWords()
		list = append(list, l.family.LoadDestination(0), nft.LoadProtocol(next), nft.LoadDestinationPort(next+1), nft.Member(r.Holders, 0))
	}
	if r.Peers != "" {
		peer := l.family.LoadDestination
		if r.Direction == plan.Ingress {
			peer = l.family.LoadSource
		}
		list = append(list, peer(0), nft.Member(r.Peers, 0))
	}
	return append(list, verdict(r))
}

// between matches ports in the range, both ends included.
func between(from, to uint16) []expr.Any {
	if from == to {
		return []expr.Any{compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(from))}
	}
	return []expr.Any{compare(expr.CmpOpGte, binaryutil.BigEndian.PutUint16(from)), compare(expr.CmpOpLte, binaryutil.BigEndian.PutUint16(to))}
}

func compare(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: nft.Word(0), Data: data}
}

// verdict returns what happens to a packet that a rule matches. A packet that the egress policies allow goes on to the
// ingress policies of its destination.
func verdict(r plan.Rule) expr.Any {
	switch {
	case r.Verdict == plan.Jump:
		return nft.Jump(r.Chain)
	case r.Verdict == plan.Deny:
		return nft.Goto(plan.Denied)
	case r.Direction == plan.Egress:
		return nft.Goto(ingressChain)
	}
	return nft.Accept()
}
