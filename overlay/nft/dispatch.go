package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"
)

// wayChain names the chain of a way, for people too.
func wayChain(w services.Way) string {
	name := fmt.Sprintf("way-%s-%s-%d", leads[w.Where], sources[w.Source], w.Backends)
	if w.Sticky > 0 {
		name += fmt.Sprintf("-%ds", w.Sticky)
	}
	return name
}

var sources = map[services.Source]string{
	services.Keep: "keep", services.HideAll: "hide", services.HideOutside: "hide-outside", services.HideNode: "hide-node",
	services.Apart: "apart",
}

// way makes the rules that send a connection to one of as many backends.
func (t *Table) way(w services.Way) [][]expr.Any {
	var rules [][]expr.Any
	switch w.Source {
	case services.HideAll:
		rules = append(rules, t.setMark(true))
	case services.HideOutside:
		rules = append(rules, []expr.Any{verdict(expr.VerdictJump, outsideChain)})
	case services.Apart:
		rules = append(rules, []expr.Any{verdict(expr.VerdictJump, apartChain(w.Where))}, append(local(true), t.setMark(true)...))
	case services.HideNode:
		rules = append(rules, append(local(true), t.setMark(true)...))
	}
	if w.Sticky > 0 {
		rules = append(rules, t.again(w), t.first(w))
	}
	return append(rules, t.any(w))
}

// any sends to any backend.
func (t *Table) any(w services.Way) []expr.Any {
	return slices.Concat(t.group(w.Where), []expr.Any{t.number(w), lookup(backendsMap, t.pairWord(), t.freeWord())}, t.send(t.freeWord()))
}

// Of the registers' words, the first hold an address, the next two a pair (protocol and port, or a way, or a group), the
// next two the number or the id of a backend, and those behind are free.
//
// The nft command lists what a rule does with its registers by the word a value begins at, and stops with a failed assertion
// when the value of one map is the key of another. So values that become keys have a word in front that nobody uses, and are
// looked up to one word before something else that nft has seen in their place.
func (t *Table) pairWord() uint32 { return t.addressWords() }
func (t *Table) idWord() uint32   { return t.addressWords() + 2 }
func (t *Table) freeWord() uint32 { return t.addressWords() + 4 }

// again sends to the backend the client had before, if that is still one of the group.
func (t *Table) again(w services.Way) []expr.Any {
	found, known := t.freeWord(), t.freeWord()+4 // each: a word nobody uses, an id
	return slices.Concat(t.group(w.Where), []expr.Any{
		t.loadSource(word(0)), anything(found+1, 2), anything(known, 3),
		lookup(clientsMap, 0, found), copyPair(found+1, t.idWord()), copyPair(found+1, known+1),
		lookup(stayMap, t.pairWord(), t.freeWord()), t.remember(w, known, unix.NFT_DYNSET_OP_UPDATE),
	}, t.send(t.freeWord()))
}

// first chooses a backend and remembers it. Another may be remembered that is no more; an update would leave that as it is.
// If no more clients can be remembered, the rule ends there.
func (t *Table) first(w services.Way) []expr.Any {
	const forget = 2 // NFT_DYNSET_OP_DELETE
	chosen := t.freeWord()
	return slices.Concat(t.group(w.Where), []expr.Any{
		t.loadSource(word(0)), t.number(w), anything(chosen, 3), lookup(idsMap, t.pairWord(), chosen+1),
		t.remember(w, chosen, forget), t.remember(w, chosen, unix.NFT_DYNSET_OP_UPDATE), lookup(backendsMap, t.pairWord(), t.freeWord()),
	}, t.send(t.freeWord()))
}

// remember changes what is known of a client.
func (t *Table) remember(w services.Way, id, operation uint32) expr.Any {
	d := &expr.Dynset{SrcRegKey: word(0), SrcRegData: word(id), SetName: clientsMap, Operation: operation}
	if operation == unix.NFT_DYNSET_OP_UPDATE {
		d.Timeout = time.Duration(w.Sticky) * time.Second
	}
	return d
}

// number draws the number of a backend.
func (t *Table) number(w services.Way) expr.Any {
	return &expr.Numgen{Register: word(t.idWord()), Modulus: w.Backends, Type: unix.NFT_NG_RANDOM}
}

// anything fills words with something.
func anything(at, words uint32) expr.Any {
	return &expr.Payload{DestRegister: word(at), Base: expr.PayloadBaseNetworkHeader, Len: 4 * words}
}

func copyPair(from, to uint32) expr.Any {
	ones := []byte{255, 255, 255, 255, 255, 255, 255, 255}
	return &expr.Bitwise{SourceRegister: word(from), DestRegister: word(to), Len: 8, Mask: ones, Xor: make([]byte, 8)}
}

// send rewrites the destination to the address and port in the words.
func (t *Table) send(from uint32) []expr.Any {
	family := uint32(unix.NFPROTO_IPV6)
	if t.cfg.V4 {
		family = unix.NFPROTO_IPV4
	}
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: word(from), RegProtoMin: word(from + t.addressWords()),
	}}
}

// group looks up the group of the packet's destination; the address is lost.
func (t *Table) group(where services.Where) []expr.Any {
	return t.aboutDestination(where, leads[where]+groupsOf)
}

// follow goes on in the chain of the destination's way.
func (t *Table) follow(where services.Where) []expr.Any {
	return append(t.aboutDestination(where, leads[where]), verdictOf(waysOf(where), t.pairWord()))
}

func (t *Table) aboutDestination(where services.Where, name string) []expr.Any {
	from := uint32(0)
	if atPort(where) {
		from = t.pairWord()
	}
	return append(t.destination(atPort(where)), lookup(name, from, t.pairWord()-1))
}

func atPort(w services.Where) bool { return w == services.AtPort || w == services.AtPortOutside }

// waysOf is the map of ways for leads that are found there.
func waysOf(where services.Where) string {
	if where == services.AtAddressOutside || where == services.AtPortOutside {
		return outsideWaysMap
	}
	return waysMap
}

func apartChain(where services.Where) string {
	if atPort(where) {
		return "apart-ports"
	}
	return "apart"
}

// apart leads clients outside elsewhere, or drops what they send; for others it returns.
func (t *Table) apart(outside services.Where) [][]expr.Any {
	return append(t.unless(t.from, append(local(true), verdict(expr.VerdictReturn, ""))),
		t.follow(outside), []expr.Any{verdict(expr.VerdictDrop, "")})
}

// guard lets through who comes from one of the networks.
func (t *Table) guard(networks []netip.Prefix) [][]expr.Any {
	var rules [][]expr.Any
	for _, p := range networks {
		rules = append(rules, append(t.from(p), verdict(expr.VerdictReturn, "")))
	}
	return append(rules, []expr.Any{verdict(expr.VerdictDrop, "")})
}
