package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/services"
)

// wayChain returns the name of a way's chain, which describes the way for readers of the ruleset.
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

// way returns the rules that send a connection to one of w.Backends backends.
func (l *layout) way(w services.Way) []nft.Rule {
	var rules []nft.Rule
	switch w.Source {
	case services.HideAll:
		rules = append(rules, l.setMark())
	case services.HideOutside:
		rules = append(rules, []expr.Any{nft.Jump(outsideChain)})
	case services.Apart:
		rules = append(rules, []expr.Any{nft.Jump(apartChain(w.Where))}, append(fromThisHost(), l.setMark()...))
	case services.HideNode:
		rules = append(rules, append(fromThisHost(), l.setMark()...))
	}
	if w.Sticky > 0 {
		rules = append(rules, l.sendRemembered(w), l.sendNew(w))
	}
	return append(rules, l.sendRandom(w))
}

// sendRandom sends to a random backend of the group.
func (l *layout) sendRandom(w services.Way) []expr.Any {
	return slices.Concat(l.loadGroup(w.Where), []expr.Any{l.drawNumber(w), nft.Lookup(backendsMap, l.pairWord(), l.freeWord())}, l.sendTo(l.freeWord()))
}

// Of the registers' words, the first hold an address, the next two a pair (protocol and port, or a way, or a group), the
// next two the number or the id of a backend, and those behind are free.
//
// The nft command, when it lists a rule, knows values by the word in which they begin, and stops with a failed assertion when
// the value of one map is the key of another. So values that become keys have an unused word in front, and are looked up into
// one word before a place that something else was loaded into.
func (l *layout) pairWord() uint32 { return l.family.AddressWords() }
func (l *layout) idWord() uint32   { return l.family.AddressWords() + 2 }
func (l *layout) freeWord() uint32 { return l.family.AddressWords() + 4 }

// sendRemembered sends to the backend that the client had before, if the group still has it.
func (l *layout) sendRemembered(w services.Way) []expr.Any {
	found, known := l.freeWord(), l.freeWord()+4 // each: an unused word, an id
	return slices.Concat(l.loadGroup(w.Where), []expr.Any{
		l.family.LoadSource(0), fill(found+1, 2), fill(known, 3),
		nft.Lookup(clientsMap, 0, found), copyPair(found+1, l.idWord()), copyPair(found+1, known+1),
		nft.Lookup(stayMap, l.pairWord(), l.freeWord()), l.updateClient(w, known, unix.NFT_DYNSET_OP_UPDATE),
	}, l.sendTo(l.freeWord()))
}

// sendNew chooses a backend and remembers it for the client. The client may have an element with a backend that is gone;
// an update would not change its value, so it is deleted first. When the map is full the rule ends there, and the next rule
// sends the client to a random backend.
func (l *layout) sendNew(w services.Way) []expr.Any {
	const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE
	chosen := l.freeWord()
	return slices.Concat(l.loadGroup(w.Where), []expr.Any{
		l.family.LoadSource(0), l.drawNumber(w), fill(chosen, 3), nft.Lookup(idsMap, l.pairWord(), chosen+1),
		l.updateClient(w, chosen, dynsetDelete), l.updateClient(w, chosen, unix.NFT_DYNSET_OP_UPDATE), nft.Lookup(backendsMap, l.pairWord(), l.freeWord()),
	}, l.sendTo(l.freeWord()))
}

// updateClient updates or deletes the element of a client.
func (l *layout) updateClient(w services.Way, id, operation uint32) expr.Any {
	d := &expr.Dynset{SrcRegKey: nft.Word(0), SrcRegData: nft.Word(id), SetName: clientsMap, Operation: operation}
	if operation == unix.NFT_DYNSET_OP_UPDATE {
		d.Timeout = time.Duration(w.Sticky) * time.Second
	}
	return d
}

// drawNumber draws the number of a backend.
func (l *layout) drawNumber(w services.Way) expr.Any {
	return &expr.Numgen{Register: nft.Word(l.idWord()), Modulus: w.Backends, Type: unix.NFT_NG_RANDOM}
}

// fill loads some bytes of the packet into words that the nft command must know: see pairWord.
func fill(at, words uint32) expr.Any {
	return &expr.Payload{DestRegister: nft.Word(at), Base: expr.PayloadBaseNetworkHeader, Len: 4 * words}
}

func copyPair(from, to uint32) expr.Any {
	ones := []byte{255, 255, 255, 255, 255, 255, 255, 255}
	return &expr.Bitwise{SourceRegister: nft.Word(from), DestRegister: nft.Word(to), Len: 8, Mask: ones, Xor: make([]byte, 8)}
}

// sendTo rewrites the destination to the address and port in the words.
func (l *layout) sendTo(from uint32) []expr.Any {
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(l.family), RegAddrMin: nft.Word(from), RegProtoMin: nft.Word(from + l.family.AddressWords()),
	}}
}

// loadGroup looks up the group of the packet's destination into the pair; the words of the address are overwritten.
func (l *layout) loadGroup(where services.Where) []expr.Any {
	return l.lookupDestination(where, leads[where]+groupsOf)
}

// follow jumps to the chain of the destination's way.
func (l *layout) follow(where services.Where) []expr.Any {
	return append(l.lookupDestination(where, leads[where]), nft.VerdictOf(waysOf(where), l.pairWord()))
}

// lookupDestination looks up the packet's destination in a map.
func (l *layout) lookupDestination(where services.Where, name string) []expr.Any {
	if atPort(where) {
		return append(l.loadPort(), nft.Lookup(name, l.pairWord(), l.pairWord()-1))
	}
	return append(l.loadDestination(), nft.Lookup(name, 0, l.pairWord()-1))
}

func atPort(w services.Where) bool { return w == services.AtPort || w == services.AtPortOutside }

// waysOf returns the map of ways for leads that are found there.
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

// apart sends clients outside the pod networks to their own lead, or drops their packets; for other clients it returns.
func (l *layout) apart(outside services.Where) []nft.Rule {
	return append(l.unless(l.family.From, append(fromThisHost(), nft.Return())),
		l.follow(outside), []expr.Any{nft.Drop()})
}

// guard drops packets that come from none of the networks.
func (l *layout) guard(networks []netip.Prefix) []nft.Rule {
	var rules []nft.Rule
	for _, p := range networks {
		rules = append(rules, append(l.family.From(p), nft.Return()))
	}
	return append(rules, []expr.Any{nft.Drop()})
}
